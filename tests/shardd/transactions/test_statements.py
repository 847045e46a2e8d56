"""Statements of transactions through a shard daemon, on real mongods."""

from typing import Any

import pytest
from bson import Binary, Int64
from bson.timestamp import Timestamp

from shardwright.sharding.versions import UNSHARDED
from tests.shardd.router_stand_in import ShardedNamespace
from tests.shardd.transactions.conftest import Begin

DOCUMENT: dict[str, Any] = {"_id": 1, "a": 11}
INSERT = {"insert": "c", "documents": [DOCUMENT]}


def read_only(reply: dict[str, Any]) -> object:
    """Return ``readOnly`` of a reply, which must be ok."""
    assert reply["ok"], reply
    return reply["readOnly"]


def test_reads_and_updates_of_nothing_are_read_only(ranged: ShardedNamespace, begin: Begin) -> None:
    ranged.insert({"_id": 1, "a": 11, "b": 1})
    transaction = begin()
    statements: list[dict[str, Any]] = [
        {"find": "c"},
        {"aggregate": "c", "pipeline": [], "cursor": {}},
        {"update": "c", "updates": [{"q": {"a": 11}, "u": {"$set": {"b": 1}}}]},
        {"delete": "c", "deletes": [{"q": {"a": 12}, "limit": 1}]},
        {"findAndModify": "c", "query": {"a": 12}, "update": {"$set": {"b": 1}}},
    ]
    assert [read_only(transaction.run(each)) for each in statements] == [True] * 5
    assert transaction.commit() == {"ok": 1.0}


@pytest.mark.parametrize(
    "write",
    [
        INSERT,
        {"update": "c", "updates": [{"q": {"a": 12}, "u": {"$set": {"b": 2}}}]},
        {"update": "c", "updates": [{"q": {"a": 13}, "u": {"$set": {"b": 2}}, "upsert": True}]},
        {"delete": "c", "deletes": [{"q": {"a": 12}, "limit": 1}]},
        {"findAndModify": "c", "query": {"a": 12}, "update": {"$set": {"b": 3}}},
        {"findAndModify": "c", "query": {"a": 12}, "remove": True},
        {"findAndModify": "c", "query": {"a": 13}, "update": {"$set": {"b": 3}}, "upsert": True},
    ],
)
def test_a_write_and_all_later_statements_are_not_read_only(
    ranged: ShardedNamespace, begin: Begin, write: dict[str, Any]
) -> None:
    ranged.insert({"_id": 2, "a": 12})
    transaction = begin()
    assert read_only(transaction.run({"find": "c"})) is True
    assert read_only(transaction.run(write)) is False
    assert read_only(transaction.run({"find": "c"})) is False
    assert transaction.commit() == {"ok": 1.0}


@pytest.mark.parametrize(
    "create",
    [
        {"create": "created"},
        {"insert": "created", "documents": [{}]},
        {"createIndexes": "created", "indexes": [{"key": {"b": 1}, "name": "b"}]},
    ],
)
def test_creations_are_not_read_only(ranged: ShardedNamespace, begin: Begin, create: dict[str, Any]) -> None:
    versions = {"shardVersion": UNSHARDED.to_document(), "databaseVersion": ranged.database_version}
    transaction = begin()
    assert read_only(transaction.run({**create, **versions})) is False
    assert transaction.commit() == {"ok": 1.0}


def test_an_existing_index_is_read_only(ranged: ShardedNamespace, begin: Begin) -> None:
    transaction = begin()
    indexes = {"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a_1"}]}
    assert read_only(transaction.run(indexes)) is True


def test_the_coordinator_field_is_cut_off(ranged: ShardedNamespace, begin: Begin) -> None:
    transaction = begin()
    assert read_only(transaction.run({**INSERT, "coordinator": True})) is False
    assert read_only(transaction.run({"find": "c", "coordinator": True})) is False
    assert transaction.commit(coordinator=True) == {"ok": 1.0}
    assert ranged.documents() == [DOCUMENT]


def test_a_stale_first_statement_has_the_label_and_may_be_repeated_with_the_same_number(
    ranged: ShardedNamespace,
    begin: Begin,
) -> None:
    transaction = begin()
    stale = {**ranged.version(), "v": Timestamp(1, 3)}
    for statement in ({"find": "c"}, INSERT):
        reply = transaction.run({**statement, "shardVersion": stale})
        assert (reply["code"], reply["errorLabels"]) == (13388, ["TransientTransactionError"])
        transaction.begin_again()
    assert read_only(transaction.run(INSERT)) is False
    assert transaction.commit() == {"ok": 1.0}


def test_a_stale_later_statement_aborts(ranged: ShardedNamespace, begin: Begin) -> None:
    transaction = begin()
    transaction.run(INSERT)
    reply = transaction.run({"find": "c", "shardVersion": {**ranged.version(), "v": Timestamp(1, 3)}})
    assert (reply["code"], reply["errorLabels"]) == (13388, ["TransientTransactionError"])
    reply = transaction.commit()
    assert (reply["code"], reply["errorLabels"]) == (251, ["TransientTransactionError"])
    ranged.insert(DOCUMENT)  # no conflict


def test_a_stale_database_version_has_the_label(ranged: ShardedNamespace, begin: Begin) -> None:
    versions = {"shardVersion": UNSHARDED.to_document(), "databaseVersion": {**ranged.database_version, "lastMod": 7}}
    reply = begin().run({"find": "u", **versions})
    assert (reply["code"], reply["errorLabels"]) == (249, ["TransientTransactionError"])


def test_child_sessions_are_sessions_of_their_own(ranged: ShardedNamespace, begin: Begin) -> None:
    parent = begin()
    child = begin({**parent.lsid, "txnUUID": Binary(b"c" * 16, 4)}, Int64(0))
    assert read_only(parent.run(INSERT)) is False
    assert read_only(child.run({"find": "c"})) is True
    assert (parent.commit(), child.commit()) == ({"ok": 1.0}, {"ok": 1.0})


def test_a_retryable_write_is_executed_in_one_transaction_at_a_time(ranged: ShardedNamespace, begin: Begin) -> None:
    first = begin({**begin().lsid, "txnNumber": Int64(7), "txnUUID": Binary(b"1" * 16, 4)}, Int64(0))
    assert not read_only(first.run({**INSERT, "stmtIds": [0]}))
    second = begin({**first.lsid, "txnUUID": Binary(b"2" * 16, 4)}, Int64(0))
    reply = second.run({"find": "c"})
    assert (reply["code"], reply["errorLabels"]) == (112, ["TransientTransactionError"])
    other_write = begin({**second.lsid, "txnNumber": Int64(8)}, Int64(0), shard="sh1")
    assert read_only(other_write.run({"find": "c"}))
    assert first.commit() == {"ok": 1.0}
    second.begin_again()
    assert second.run({**INSERT, "stmtIds": [0]})["retriedStmtIds"] == [0]
