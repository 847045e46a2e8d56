"""Prepared transactions on a shard: only the coordinator of their commit decides them, and they survive restarts."""

from collections.abc import Iterator
from typing import Any

import pytest
from bson.timestamp import Timestamp

from tests.integration.raw_client import raw_client
from tests.shardd.mini_cluster import MiniCluster
from tests.shardd.router_stand_in import ShardedNamespace
from tests.shardd.transactions.conftest import Begin
from tests.shardd.transactions.moves import try_move
from tests.shardd.transactions.routed_transaction import RoutedTransaction

DOCUMENT: dict[str, Any] = {"_id": 1, "a": 11, "b": 1}
INSERT = {"insert": "c", "documents": [DOCUMENT]}
UPDATE = {"update": "c", "updates": [{"q": {"_id": 1, "a": 11}, "u": {"$set": {"b": 2}}}]}


@pytest.fixture
def updating(ranged: ShardedNamespace, begin: Begin) -> Iterator[RoutedTransaction]:
    """A transaction that has updated a document; aborted after the test if it is prepared."""
    ranged.insert(DOCUMENT)
    transaction = begin()
    assert transaction.run(UPDATE)["nModified"] == 1
    yield transaction
    transaction.decide({"abortTransaction": 1})


@pytest.mark.parametrize(
    "command",
    [
        {"prepareTransaction": 1},
        {"prepareTransaction": 1, "$coordinator": "sh1"},
        {"commitTransaction": 1, "commitTimestamp": Timestamp(1, 1)},
        {"commitTransaction": 1, "commitTimestamp": Timestamp(1, 1), "$coordinator": "sh1"},
    ],
)
def test_others_than_a_coordinator_may_not_prepare_or_commit_at_a_time(
    ranged: ShardedNamespace, updating: RoutedTransaction, command: dict[str, Any]
) -> None:
    reply = updating.command({**command, **updating.fields}, db="admin")
    assert (reply["ok"], reply["code"]) == (0.0, 13)
    assert updating.commit() == {"ok": 1.0}
    assert ranged.documents() == [{**DOCUMENT, "b": 2}]


@pytest.mark.parametrize("api", [{"apiVersion": "1"}, {"apiVersion": "1", "apiStrict": True}])
def test_a_coordinator_need_not_know_the_parameters_of_the_stable_api(
    ranged: ShardedNamespace, begin: Begin, api: dict[str, Any]
) -> None:
    transaction = begin()
    assert transaction.run({**INSERT, **api})["ok"]
    time = transaction.prepare()
    assert transaction.decide({"commitTransaction": 1, "commitTimestamp": time}) == {"ok": 1.0}
    assert ranged.documents() == [DOCUMENT]


def test_nobody_but_the_coordinator_decides_a_prepared_transaction(
    ranged: ShardedNamespace, updating: RoutedTransaction
) -> None:
    time = updating.prepare()
    for command in ({"abortTransaction": 1}, {"commitTransaction": 1}, {"abortTransaction": 1, "$coordinator": "sh1"}):
        reply = updating.command({**command, **updating.fields}, db="admin")
        assert (reply["ok"], reply["code"]) == (0.0, 267)
    reply = updating.run({"find": "c"})
    assert (reply["code"], reply["errorLabels"]) == (267, ["TransientTransactionError"])
    assert updating.decide({"commitTransaction": 1, "commitTimestamp": time}) == {"ok": 1.0}
    assert ranged.documents() == [{**DOCUMENT, "b": 2}]
    assert updating.commit() == {"ok": 1.0}  # a repeated commit
    assert updating.abort()["code"] == 256


def test_only_the_shard_that_has_prepared_a_transaction_decides_it(
    ranged: ShardedNamespace, updating: RoutedTransaction
) -> None:
    time = updating.prepare()
    commit = {"commitTransaction": 1, "commitTimestamp": time}
    refused: list[tuple[dict[str, Any], int]] = [
        ({"abortTransaction": 1}, 267),
        (commit, 13),
        ({"prepareTransaction": 1}, 13),
    ]
    for command, code in refused:
        for stranger in ("sh0", "", 5):
            assert updating.decide(command, stranger)["code"] == code
    assert updating.prepare() == time
    assert updating.decide(commit) == {"ok": 1.0}
    assert ranged.documents() == [{**DOCUMENT, "b": 2}]


def test_a_stale_statement_does_not_abort_a_prepared_transaction(
    ranged: ShardedNamespace, updating: RoutedTransaction
) -> None:
    time = updating.prepare()
    reply = updating.run({"find": "c", "shardVersion": {**ranged.version(), "v": Timestamp(1, 3)}})
    assert reply["code"] == 13388
    assert updating.decide({"commitTransaction": 1, "commitTimestamp": time}) == {"ok": 1.0}


def test_a_commit_timestamp_far_ahead_is_refused(updating: RoutedTransaction) -> None:
    time = updating.prepare()
    far = Timestamp(time.time + 2 * 31_536_000, 1)
    reply = updating.decide({"commitTransaction": 1, "commitTimestamp": far})
    assert (reply["ok"], reply["code"]) == (0.0, 205)
    assert updating.decide({"commitTransaction": 1, "commitTimestamp": time}) == {"ok": 1.0}


def test_a_newer_transaction_of_the_session_waits(updating: RoutedTransaction, begin: Begin) -> None:
    time = updating.prepare()
    newer = begin(updating.lsid)
    reply = newer.run({"find": "c", "maxTimeMS": 200})
    assert reply["code"] == 50
    assert updating.decide({"commitTransaction": 1, "commitTimestamp": time}) == {"ok": 1.0}
    assert begin(updating.lsid).run({"find": "c"})["cursor"]["firstBatch"] == [{**DOCUMENT, "b": 2}]


def test_a_failed_prepare_leaves_a_transaction_that_anyone_may_abort(ranged: ShardedNamespace, begin: Begin) -> None:
    transaction = begin()
    assert transaction.run(INSERT)["ok"]
    assert transaction.abort() == {"ok": 1.0}
    reply = transaction.decide({"prepareTransaction": 1})
    assert (reply["code"], transaction.abort()["code"]) == (251, 251)
    assert try_move(ranged) == 0


@pytest.mark.parametrize("process", ["daemon", "mongod"])
def test_a_prepared_transaction_survives_a_restart(
    mini: MiniCluster, ranged: ShardedNamespace, updating: RoutedTransaction, process: str
) -> None:
    time = updating.prepare()
    member = mini.shards["sh0"].members[0]
    member.restart(getattr(member, process))
    updating.reconnect()
    assert updating.abort()["code"] == 267
    assert try_move(ranged) == 24
    read = {"find": "c", "readConcern": {"level": "local", "afterClusterTime": time}, "maxTimeMS": 200}
    with raw_client(member.address) as client:
        waiting = client.command({**read, "shardVersion": ranged.version()}, db=ranged.db)
        plain = client.command({"find": "c", "shardVersion": ranged.version()}, db=ranged.db)
    assert waiting["code"] == 50
    assert plain["cursor"]["firstBatch"] == [DOCUMENT]
    assert updating.prepare() == time
    assert updating.decide({"commitTransaction": 1, "commitTimestamp": time}) == {"ok": 1.0}
    assert ranged.documents() == [{**DOCUMENT, "b": 2}]
    assert try_move(ranged) == 0
