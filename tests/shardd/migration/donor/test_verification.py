"""Verified migrations: differences on the recipient are noticed before the commit, not after it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pymongo.collection import Collection
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from tests.server_parameters import server_parameter
from tests.shardd.migration.donor.moving import LOW, TOP, Move, changes, daemon, migrations_left, stopped_move
from tests.shardd.mini_cluster import MiniCluster
from tests.shardd.router_stand_in import ShardedNamespace

Document = dict[str, Any]
Damage = Callable[[Collection[Document]], object]

DOCUMENTS = [{"_id": n, "a": n, "text": "x" * 100} for n in range(10, 1010)]


@pytest.fixture
def verified(mini: MiniCluster, ranged: ShardedNamespace) -> Iterator[ShardedNamespace]:
    """The collection with documents in the range to move, whose donor verifies migrations."""
    with server_parameter(daemon(mini), "verifyMigrations", value=True):
        ranged.insert(*DOCUMENTS)
        yield ranged


@pytest.mark.parametrize(
    "damage",
    [
        lambda things: things.update_one({"_id": 500}, {"$set": {"text": "y" * 100}}),
        lambda things: things.insert_one({"_id": "stranger", "a": 500.5}),
        lambda things: things.delete_one({"_id": 500}),
        lambda things: things.replace_one({"_id": 500}, {"_id": 500, "a": 500.0, "text": "x" * 100}),
    ],
    ids=["changed", "inserted", "deleted", "of another type"],
)
def test_a_difference_aborts(mini: MiniCluster, verified: ShardedNamespace, damage: Damage) -> None:
    """The test writes directly to the recipient's mongod when everything has been cloned."""
    with mini.shards["sh1"].members[0].mongod_client() as mongod:
        with stopped_move(verified, "moveChunkHangAtStep4") as move:
            damage(mongod[verified.db][verified.collection])
        with pytest.raises(OperationFailure) as failure:
            move.wait()
    assert failure.value.code == ErrorCode.DataCorruptionDetected
    assert "nothing has been committed" in str(failure.value)
    # The donor has the range unchanged, serves it, and has forgotten the migration.
    assert verified.chunks()[-1]["shard"] == "sh0"
    assert verified.documents() == DOCUMENTS
    new = {"_id": 2000, "a": 2000}
    verified.insert(new)
    assert migrations_left(mini) == []
    assert changes(verified, "moveChunk.from")[-1]["note"] == "aborted"
    # The next migration waits until the recipient's documents are deleted, including the damaged ones.
    Move(verified, LOW, TOP, "sh1").wait()
    assert verified.chunks()[-1]["shard"] == "sh1"
    assert verified.documents("sh1") == [*DOCUMENTS, new]


def test_writes_on_the_donor_make_no_difference(verified: ShardedNamespace) -> None:
    """Writes after the clone are transferred before the digests are compared."""
    things = verified.collection
    with stopped_move(verified, "moveChunkHangAtStep4") as move:
        verified.versioned({"update": things, "updates": [{"q": {"a": 500}, "u": {"$set": {"text": "y"}}}]})
        verified.versioned({"delete": things, "deletes": [{"q": {"a": 501}, "limit": 1}]})
        verified.insert({"_id": "new", "a": 500.5})
    move.wait()
    expected = {document["_id"]: document for document in DOCUMENTS if document["_id"] != 501}
    expected[500] = {**expected[500], "text": "y"}
    expected["new"] = {"_id": "new", "a": 500.5}
    assert {document["_id"]: document for document in verified.documents("sh1")} == expected
