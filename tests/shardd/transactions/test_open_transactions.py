"""The time for which a transaction counts as open on a shard, and prevents moves of its collections' ranges."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from bson import Int64
from bson.timestamp import Timestamp

from tests.integration.raw_client import raw_client
from tests.pauses import paused
from tests.shardd.mini_cluster import Member, MiniCluster
from tests.shardd.router_stand_in import ShardedNamespace
from tests.shardd.transactions.conftest import Begin
from tests.shardd.transactions.moves import try_move
from tests.shardd.transactions.routed_transaction import RoutedTransaction

DOCUMENT: dict[str, Any] = {"_id": 1, "a": 11}
INSERT = {"insert": "c", "documents": [DOCUMENT]}


def test_a_move_fails_while_a_transaction_is_open(ranged: ShardedNamespace, begin: Begin) -> None:
    transaction = begin()
    assert transaction.run({"find": "c"})["ok"]
    assert try_move(ranged) == 24
    assert transaction.run(INSERT)["ok"]
    assert transaction.commit() == {"ok": 1.0}
    assert try_move(ranged) == 0


def test_an_upserted_id_is_not_taken_for_errors(ranged: ShardedNamespace, begin: Begin) -> None:
    transaction = begin()
    query = {"_id": {"writeErrors": [], "ok": 0.0}, "a": 11}
    upsert = {"q": query, "u": {"$set": {"b": 1}}, "upsert": True}
    assert transaction.run({"update": "c", "updates": [upsert]})["n"] == 1
    assert transaction.commit() == {"ok": 1.0}
    assert ranged.documents() == [{**query, "b": 1}]


def commit(transaction: RoutedTransaction) -> None:
    assert transaction.commit() == {"ok": 1.0}


def abort(transaction: RoutedTransaction) -> None:
    assert transaction.abort() == {"ok": 1.0}


def fail_an_item(transaction: RoutedTransaction) -> None:
    assert transaction.run(INSERT)["writeErrors"][0]["code"] == 11000


def be_stale(transaction: RoutedTransaction) -> None:
    stale = {**transaction.sharded.version(), "v": Timestamp(1, 3)}
    assert transaction.run({"find": "c", "shardVersion": stale})["code"] == 13388


def fail_a_statement(transaction: RoutedTransaction) -> None:
    assert transaction.run({"find": "c", "filter": {"$no": 1}})["code"] == 2


def begin_a_newer_one(transaction: RoutedTransaction) -> None:
    transaction.number = Int64(transaction.number + 1)
    transaction.begin_again()
    assert transaction.run({"aggregate": "other", "pipeline": [], "cursor": {}, "shardVersion": None})["code"] == 14


def write_retryably(transaction: RoutedTransaction) -> None:
    number = Int64(transaction.number + 1)
    versions = {"shardVersion": transaction.sharded.version()}
    write = {**INSERT, **versions, "lsid": transaction.lsid, "txnNumber": number}
    assert transaction.command(write) == {"n": 1, "ok": 1.0}


def kill_the_session(transaction: RoutedTransaction) -> None:
    assert transaction.command({"killSessions": [{"id": transaction.lsid["id"]}]}, db="admin")["ok"]


def kill_the_session_on_mongod(transaction: RoutedTransaction) -> None:
    with transaction.sharded.cluster.shards["sh0"].members[0].mongod_client() as mongod:
        mongod.admin.command("killSessions", [{"id": transaction.lsid["id"]}])


@pytest.mark.parametrize(
    "end",
    [
        commit,
        abort,
        fail_an_item,
        be_stale,
        fail_a_statement,
        begin_a_newer_one,
        write_retryably,
        kill_the_session,
        kill_the_session_on_mongod,
    ],
)
def test_a_move_succeeds_when_the_transaction_has_ended(
    ranged: ShardedNamespace, begin: Begin, end: Callable[[RoutedTransaction], None]
) -> None:
    transaction = begin()
    assert transaction.run(INSERT)["ok"]
    end(transaction)
    assert try_move(ranged) == 0


def test_a_closed_connection_ends_nothing(ranged: ShardedNamespace, begin: Begin) -> None:
    transaction = begin()
    assert transaction.run(INSERT)["ok"]
    transaction.reconnect()
    assert transaction.run({"find": "c"})["readOnly"] is False
    assert transaction.commit() == {"ok": 1.0}


def test_a_killed_daemon_leaves_no_transaction_behind(
    mini: MiniCluster, ranged: ShardedNamespace, begin: Begin
) -> None:
    transaction = begin()
    assert transaction.run(INSERT)["ok"]
    member = mini.shards["sh0"].members[0]
    member.restart(member.daemon)
    transaction.reconnect()
    reply = transaction.run({"find": "c"})
    assert (reply["code"], reply["errorLabels"]) == (251, ["TransientTransactionError"])
    assert try_move(ranged) == 0


@pytest.fixture
def impatient(mini: MiniCluster) -> Iterator[Member]:
    """The member of ``sh0``, whose daemon takes a mongod for gone that has not answered for a second."""
    member = mini.shards["sh0"].members[0]
    arguments = member.daemon.arguments
    member.daemon.arguments = [*arguments, "--hello-seconds", "1"]
    member.restart(member.daemon)
    yield member
    member.daemon.arguments = arguments
    member.restart(member.daemon)


def test_a_mongod_out_of_reach_for_a_while_leaves_no_transaction_behind(
    ranged: ShardedNamespace, impatient: Member, begin: Begin
) -> None:
    transaction = begin()
    assert transaction.run(INSERT)["ok"]
    mongod = impatient.mongod.running
    assert mongod is not None
    with paused(mongod.pid):
        transaction.client.socket.settimeout(30)
        assert not transaction.client.socket.recv(1)  # the daemon has given the mongod up
    impatient.wait_ready()
    transaction.reconnect()
    assert try_move(ranged) == 0
    assert transaction.commit()["code"] == 251


def test_a_transaction_that_the_daemon_does_not_know_is_not_continued(
    mini: MiniCluster, ranged: ShardedNamespace, begin: Begin
) -> None:
    transaction = begin()
    with raw_client(mini.shards["sh0"].members[0].mongod_plan.address) as mongod:
        assert mongod.command({**INSERT, **transaction.fields, "startTransaction": True}, db=ranged.db)["ok"]
    versions = {"shardVersion": ranged.version()}
    reply = transaction.command({"find": "c", **versions, **transaction.fields})
    assert (reply["code"], reply["errorLabels"]) == (251, ["TransientTransactionError"])
    assert transaction.commit()["code"] == 251
