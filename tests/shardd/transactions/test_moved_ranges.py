"""Transactions on ranges that have moved since they began."""

from collections.abc import Iterator
from typing import Any

import pytest
from bson.timestamp import Timestamp

from tests.shardd.router_stand_in import ShardedNamespace
from tests.shardd.transactions.conftest import Begin
from tests.shardd.transactions.moves import try_move

MOVED: dict[str, Any] = {"_id": 1, "a": 11}
KEPT: dict[str, Any] = {"_id": 2, "a": -1}
ON_RECIPIENT: dict[str, Any] = {"_id": 3, "a": 5}
TRANSIENT = ["TransientTransactionError"]


@pytest.fixture
def filled(ranged: ShardedNamespace) -> Iterator[ShardedNamespace]:
    """The collection, with a document in the range that moves, and one on either shard in others."""
    ranged.insert(MOVED, KEPT)
    ranged.insert(ON_RECIPIENT, shard="sh1")
    was = ranged.run({"setParameter": 1, "orphanCleanupDelaySecs": 0}, db="admin")["was"]
    yield ranged
    ranged.run({"setParameter": 1, "orphanCleanupDelaySecs": was}, db="admin")


def now(ranged: ShardedNamespace) -> Timestamp:
    """The present cluster time of the shard."""
    time: Timestamp = ranged.gossiping({"ping": 1})["$clusterTime"]["clusterTime"]
    return time


@pytest.mark.parametrize(
    "statement",
    [
        {"find": "c"},
        {"insert": "c", "documents": [{"_id": 7, "a": 12}]},
        {"update": "c", "updates": [{"q": {"_id": 1, "a": 11}, "u": {"$set": {"b": 1}}}]},
    ],
)
def test_a_transaction_that_began_before_a_range_arrived_does_not_find_it_empty(
    filled: ShardedNamespace, begin: Begin, statement: dict[str, Any]
) -> None:
    transaction = begin(shard="sh1")
    assert transaction.run({"find": "nothing"}, has_versions=False)["ok"]
    assert try_move(filled) == 0
    reply = transaction.run(statement)
    assert (reply["ok"], reply["code"], reply["errorLabels"]) == (0.0, 272, TRANSIENT)
    again = begin(shard="sh1")
    found = again.run({"find": "c", "sort": {"_id": 1}})["cursor"]["firstBatch"]
    assert found == [MOVED, ON_RECIPIENT]


def test_a_range_arrives_while_a_transaction_is_open_on_the_collection(filled: ShardedNamespace, begin: Begin) -> None:
    transaction = begin(shard="sh1")
    update = {"update": "c", "updates": [{"q": {"_id": 3, "a": 5}, "u": {"$set": {"b": 1}}}]}
    assert transaction.run(update)["nModified"] == 1
    assert try_move(filled) == 0
    assert transaction.commit() == {"ok": 1.0}
    assert filled.documents("sh1") == [MOVED, {**ON_RECIPIENT, "b": 1}]


def test_a_transaction_that_began_before_a_range_was_deleted_does_not_find_it(
    filled: ShardedNamespace, begin: Begin
) -> None:
    transaction = begin()
    assert transaction.run({"find": "nothing"}, has_versions=False)["ok"]
    assert try_move(filled) == 0
    assert filled.run({"cleanupOrphaned": filled.namespace}, db="admin")["ok"]
    assert transaction.run({"find": "c"})["cursor"]["firstBatch"] == [KEPT]
    assert transaction.run({"delete": "c", "deletes": [{"q": {"a": {"$gt": -5}}, "limit": 0}]})["n"] == 1
    assert transaction.commit() == {"ok": 1.0}


def test_a_snapshot_on_the_donor_has_what_it_owned_in_all_statements(filled: ShardedNamespace, begin: Begin) -> None:
    time = now(filled)
    assert try_move(filled) == 0
    assert filled.run({"cleanupOrphaned": filled.namespace}, db="admin")["ok"]
    transaction = begin(concern={"level": "snapshot", "atClusterTime": time})
    for _ in range(2):
        found = transaction.run({"find": "c", "sort": {"_id": 1}})["cursor"]["firstBatch"]
        assert found == [MOVED, KEPT]


@pytest.mark.parametrize(
    "statement",
    [
        {"insert": "c", "documents": [{"_id": 7, "a": 12}]},
        {"update": "c", "updates": [{"q": {"_id": 1, "a": 11}, "u": {"$set": {"b": 1}}}]},
        {"delete": "c", "deletes": [{"q": {"a": {"$gt": 10}}, "limit": 0}]},
        {"findAndModify": "c", "query": {"a": 11}, "remove": True},
    ],
)
@pytest.mark.parametrize("shard", ["sh0", "sh1"])
def test_a_write_to_a_chunk_that_has_moved_since_the_snapshot_conflicts(
    filled: ShardedNamespace, begin: Begin, statement: dict[str, Any], shard: str
) -> None:
    time = now(filled)
    assert try_move(filled) == 0
    transaction = begin(shard=shard, concern={"level": "snapshot", "atClusterTime": time})
    reply = transaction.run(statement)
    assert (reply["ok"], reply["code"], reply["errorLabels"]) == (0.0, 272, TRANSIENT)
    text = f"Chunk has moved since timestamp: Timestamp({time.time}, {time.inc}), most recently at timestamp: Timesta"
    assert reply["errmsg"].startswith(text)


def test_a_write_elsewhere_does_not_conflict(filled: ShardedNamespace, begin: Begin) -> None:
    time = now(filled)
    assert try_move(filled) == 0
    transaction = begin(concern={"level": "snapshot", "atClusterTime": time})
    update = {"update": "c", "updates": [{"q": {"_id": 2, "a": -1}, "u": {"$set": {"b": 1}}}]}
    assert transaction.run(update)["nModified"] == 1
    assert transaction.run({"insert": "c", "documents": [{"a": -2}]})["n"] == 1
    assert transaction.commit() == {"ok": 1.0}
