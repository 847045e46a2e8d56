"""``_migrateClone`` and ``_transferMods`` between two shard daemons."""

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.timestamp import Timestamp

from tests.shardd.mini_cluster import MiniCluster
from tests.shardd.router_stand_in import ShardedNamespace

_names = count()


@pytest.fixture
def sharded(mini: MiniCluster) -> ShardedNamespace:
    """A collection on ``sh0`` with 1,500 documents, which are more than one batch."""
    sharded = ShardedNamespace(mini, f"source{next(_names)}.c", {"a": 1}, "sh0")
    sharded.insert(*({"_id": number, "a": number} for number in range(1500)))
    return sharded


def switch(sharded: ShardedNamespace, name: str, mode: object) -> int:
    """Turn a fail point of the donor on or off; how often it was entered before."""
    reply = sharded.run({"configureFailPoint": name, "mode": mode}, db="admin")
    assert reply["ok"], reply
    return int(reply["count"])


def documents(sharded: ShardedNamespace, shard: str) -> list[dict[str, Any]]:
    """All that a shard has, in one batch."""
    reply = sharded.versioned({"find": "c", "sort": {"_id": 1}, "batchSize": 10_000}, shard)
    assert reply["ok"], reply
    return list(reply["cursor"]["firstBatch"])


def test_replies_that_are_lost_are_asked_for_again(sharded: ShardedNamespace) -> None:
    expected = documents(sharded, "sh0")
    before = {}
    for name in ("loseMigrateCloneReply", "loseTransferModsReply"):
        before[name] = switch(sharded, name, {"times": 2})
    sharded.move({"a": MinKey()}, {"a": MaxKey()}, "sh1")
    for name, entered in before.items():
        assert switch(sharded, name, "off") == entered + 2
    assert documents(sharded, "sh1") == expected


def test_what_is_handed_out(sharded: ShardedNamespace) -> None:
    """The recipient waits after its clone, so that the modifications are there for the test."""
    mini = sharded.cluster
    recipient = mini.kept_client(mini.shards["sh1"].members[0]).admin
    recipient.command({"configureFailPoint": "migrateThreadHangAtStep4", "mode": "alwaysOn"})
    with ThreadPoolExecutor() as executor:
        moved = executor.submit(sharded.move, {"a": MinKey()}, {"a": MaxKey()}, "sh1")
        try:
            recipient.command({"waitForFailPoint": "migrateThreadHangAtStep4", "timesEntered": 1, "maxTimeMS": 30_000})
            session_id = recipient.command({"_recvChunkStatus": sharded.namespace})["sessionId"]
            sharded.versioned({"update": "c", "updates": [{"q": {"_id": 3, "a": 3}, "u": {"$set": {"v": 1}}}]})
            sharded.versioned({"delete": "c", "deletes": [{"q": {"_id": 5, "a": 5}, "limit": 1}]})

            def pull(name: str, **fields: object) -> dict[str, Any]:
                return sharded.run({name: sharded.namespace, "sessionId": session_id, **fields}, db="admin")

            clone = pull("_migrateClone")
            assert clone.pop("position") > Timestamp(0, 0)
            assert clone == {"objects": [], "ok": 1.0}
            mods = pull("_transferMods", number=Int64(0))
            while not mods["size"]:  # until a majority has the writes
                mods = pull("_transferMods", number=Int64(0))
            while len(mods["deleted"]) + len(mods["reload"]) < 2:
                mods = pull("_transferMods", number=Int64(0))
            assert mods["deleted"] == [{"_id": 5}]
            assert mods["reload"] == [{"_id": 3, "a": 3, "v": 1}]
            assert mods["position"] > Timestamp(0, 0)
            assert pull("_transferMods", number=Int64(5))["codeName"] == "BadValue"
            assert pull("_transferMods", number="1")["codeName"] == "TypeMismatch"
        finally:
            recipient.command({"configureFailPoint": "migrateThreadHangAtStep4", "mode": "off"})
        moved.result()
    # The recipient begins with the same number, so it is handed out again what this test has pulled.
    found = {each["_id"]: each for each in documents(sharded, "sh1")}
    assert len(found) == 1499
    assert found[3] == {"_id": 3, "a": 3, "v": 1}
