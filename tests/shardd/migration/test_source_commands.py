"""``_migrateClone`` and ``_transferMods`` between two shard daemons."""

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.timestamp import Timestamp

from tests.fail_points import fail_point
from tests.integration.waiting import eventually
from tests.shardd.mini_cluster import MiniCluster
from tests.shardd.router_stand_in import ShardedNamespace

_names = count()


@pytest.fixture
def sharded(mini: MiniCluster) -> ShardedNamespace:
    """A collection on ``sh0`` with 1,500 documents, more than one batch."""
    sharded = ShardedNamespace(mini, f"source{next(_names)}.c", {"a": 1}, "sh0")
    sharded.insert(*({"_id": number, "a": number} for number in range(1500)))
    return sharded


def test_lost_replies_are_requested_again(mini: MiniCluster, sharded: ShardedNamespace) -> None:
    expected = sharded.documents("sh0")
    donor = mini.kept_client(mini.shards["sh0"].members[0])
    with (
        fail_point(donor, "loseMigrateCloneReply", {"times": 2}) as clone,
        fail_point(donor, "loseTransferModsReply", {"times": 2}) as mods,
    ):
        sharded.move({"a": MinKey()}, {"a": MaxKey()}, "sh1")
        assert (clone.turn_off(), mods.turn_off()) == (2, 2)
    assert sharded.documents("sh1") == expected


def test_what_is_handed_out(mini: MiniCluster, sharded: ShardedNamespace) -> None:
    """The recipient waits after its clone, so that the test can pull the modifications."""
    recipient = mini.kept_client(mini.shards["sh1"].members[0])
    with ThreadPoolExecutor() as executor:
        with fail_point(recipient, "migrateThreadHangAtStep4") as cloned:
            moved = executor.submit(sharded.move, {"a": MinKey()}, {"a": MaxKey()}, "sh1")
            cloned.wait_entered()
            session_id = recipient.admin.command({"_recvChunkStatus": sharded.namespace})["sessionId"]
            sharded.versioned({"update": "c", "updates": [{"q": {"_id": 3, "a": 3}, "u": {"$set": {"v": 1}}}]})
            sharded.versioned({"delete": "c", "deletes": [{"q": {"_id": 5, "a": 5}, "limit": 1}]})

            def pull(name: str, **fields: object) -> dict[str, Any]:
                return sharded.run({name: sharded.namespace, "sessionId": session_id, **fields}, db="admin")

            def pull_both() -> dict[str, Any] | None:
                """The first batch, requested again until it has what a majority did not have before."""
                mods = pull("_transferMods", number=Int64(0))
                return mods if len(mods["deleted"]) + len(mods["reload"]) == 2 else None

            clone = pull("_migrateClone")
            assert clone.pop("position") > Timestamp(0, 0)
            assert clone == {"objects": [], "ok": 1.0}
            mods = eventually(pull_both, what="both changes are handed out")
            assert mods["deleted"] == [{"_id": 5}]
            assert mods["reload"] == [{"_id": 3, "a": 3, "v": 1}]
            assert mods["position"] > Timestamp(0, 0)
            assert pull("_transferMods", number=Int64(5))["codeName"] == "BadValue"
            assert pull("_transferMods", number="1")["codeName"] == "TypeMismatch"
        moved.result()
    # The recipient begins with the same number, so it gets what this test has pulled as well.
    found = {each["_id"]: each for each in sharded.documents("sh1")}
    assert len(found) == 1499
    assert found[3] == {"_id": 3, "a": 3, "v": 1}
