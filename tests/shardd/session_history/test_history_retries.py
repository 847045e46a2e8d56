"""Writes that one shard executed and that are retried on another: the replies equal the first shard's mongod's."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest
import trio
from bson.binary import Binary
from bson.timestamp import Timestamp

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.session_history.migrated_history import HistoryTable
from shardwright.sharding.namespace import Namespace
from shardwright.wire.transport.client import Connection, handshake_document
from shardwright.wire.transport.pool import ConnectionPools
from tests.shardd.mini_cluster import Member, MiniCluster
from tests.shardd.router_stand_in import ShardedNamespace
from tests.shardd.session_history.history_writes import Session, donor_history, drained, reply_to
from tests.transports import new_transport

Command = dict[str, Any]

NAMESPACE = Namespace("retries", "c")
UPSERT = {"upsert": True}

_ids = count()


@dataclass
class Case:
    """A write and its retry, which may be of more or other statements.

    Args:
        original: the command that the donor executed.
        retry: the command that is retried; by default the same.
        number: the transaction number of the retry; the write has 5.
    """

    original: Command
    retry: Command | None = None
    number: int = 5


def insert(*keys: int, **fields: Any) -> Command:  # noqa: ANN401 - as in a command
    return {"insert": "c", "documents": [{"_id": key, "a": 5} for key in keys], **fields}


def update(*updates: Command, **fields: Any) -> Command:  # noqa: ANN401
    return {"update": "c", "updates": list(updates), **fields}


def add(key: int, **fields: Any) -> Command:  # noqa: ANN401
    return {"q": {"_id": key, "a": 5}, "u": {"$inc": {"b": 1}}, **fields}


def delete(*keys: int, **fields: Any) -> Command:  # noqa: ANN401
    return {"delete": "c", "deletes": [{"q": {"_id": key, "a": 5}, "limit": 1} for key in keys], **fields}


def modify(key: int, **fields: Any) -> Command:  # noqa: ANN401
    return {"findAndModify": "c", "query": {"_id": key, "a": 5}, **fields}


SET = {"$set": {"b": 1}}

# Documents 0 to 9 exist; each case has documents of its own, `renumbered`.
CASES = {
    "insert": Case(insert(10, 11)),
    "insert of one": Case(insert(10)),
    "insert with ids": Case(insert(10, 11, stmtIds=[7, 3])),
    "insert with a first id": Case(insert(10, 11, stmtId=4)),
    "insert, a part": Case(insert(10, 11, stmtIds=[7, 3]), insert(11, stmtIds=[3])),
    "insert, more": Case(insert(10, 11), insert(10, 11, 12)),
    "insert, more between": Case(insert(10, 12, stmtIds=[0, 2]), insert(10, 11, 12, 13)),
    "insert, more and an error": Case(insert(10, 12, stmtIds=[0, 2]), insert(10, 0, 12, 13)),
    "insert, more and an error, unordered": Case(
        insert(10, 12, stmtIds=[0, 2]), insert(10, 0, 12, 13, 1, ordered=False)
    ),
    "update": Case(update(add(0), add(1), add(50))),
    "update with upserts": Case(update(add(0), add(10, **UPSERT), add(11, **UPSERT), add(50))),
    "update, more": Case(
        update(add(0), add(10, **UPSERT)), update(add(0), add(10, **UPSERT), add(11, **UPSERT), add(1), add(50))
    ),
    "update, more between": Case(
        update(add(0), add(10, **UPSERT), stmtIds=[1, 3]),
        update(add(11, **UPSERT), add(0), add(1), add(10, **UPSERT), add(2)),
    ),
    "update, more and an error": Case(
        update(add(0), add(1), stmtIds=[0, 3]),
        update(add(0), add(2), {"q": {"_id": 3, "a": 5}, "u": {"$set": {"_id": 1}}}, add(1), add(4)),
    ),
    "update, more and an error, unordered": Case(
        update(add(0), add(1), stmtIds=[0, 3]),
        update(add(0), add(2), {"q": {"_id": 3, "a": 5}, "u": {"$set": {"_id": 1}}}, add(1), add(4), ordered=False),
    ),
    "update that changed nothing": Case(update({"q": {"_id": 0, "a": 5}, "u": {"$set": {"a": 5}}})),
    "update by replacement": Case(update({"q": {"_id": 0, "a": 5}, "u": {"a": 5, "c": 1}})),
    "delete": Case(delete(0, 1, 50)),
    "delete, more": Case(delete(0, 1), delete(0, 1, 2, 3, 50)),
    "the same key twice": Case(update(add(0), add(0)), update(add(0), add(0), add(0))),
    "insert and delete": Case(insert(10), delete(10, stmtIds=[1])),
    "findAndModify, before": Case(modify(0, update=SET)),
    "findAndModify, after": Case(modify(0, update=SET, new=True)),
    "findAndModify with a projection": Case(modify(0, update=SET, new=True, fields={"b": 1})),
    "findAndModify by replacement": Case(modify(0, update={"a": 5, "c": 1})),
    "findAndModify by a pipeline": Case(modify(0, update=[{"$set": {"b": 2}}], new=True)),
    "findAndModify that inserts, before": Case(modify(10, update=SET, **UPSERT)),
    "findAndModify that inserts, after": Case(modify(10, update=SET, **UPSERT, new=True)),
    "findAndModify that removes": Case(modify(0, remove=True)),
    "findAndModify with an id": Case(modify(0, update=SET, stmtId=3)),
    "findAndModify of nothing": Case(modify(50, update=SET)),
    "findAndModify of another statement": Case(modify(0, update=SET, stmtId=3), modify(0, update=SET, stmtId=4)),
    "findAndModify, in lower case": Case(
        modify(0, update=SET), {"findandmodify": "c", "query": {"_id": 0, "a": 5}, "update": SET}
    ),
    "update of what was inserted": Case(insert(10), update(add(10))),
    "delete of what was updated": Case(update(add(0)), delete(0)),
    "insert of what was deleted": Case(delete(0), insert(0)),
    "an older number": Case(insert(10), insert(11), number=4),
    "an older findAndModify": Case(insert(10), modify(0, update=SET), number=4),
    "a newer number": Case(insert(10), insert(11, 12), number=6),
    "a newer update": Case(insert(10), update(add(0)), number=6),
}

# Retries that mongod refuses with an error that shows its oplog entry.
MISFITS = {
    "update of what was deleted": Case(delete(0), update(add(0))),
    "findAndModify of what was deleted": Case(delete(0), modify(0, update=SET)),
    "findAndModify of what was removed": Case(modify(0, remove=True), modify(0, update=SET)),
    "findAndModify that removes what was deleted": Case(delete(0), modify(0, remove=True)),
    "findAndModify of what was inserted": Case(insert(10), modify(10, update=SET)),
    "findAndModify of what was updated, before": Case(update(add(0)), modify(0, update=SET)),
    "findAndModify of what was updated, after": Case(update(add(0)), modify(0, update=SET, new=True)),
}

# Sessions that go on after the move, each in a test of its own.
GO_ON = {"goes on with a newer number": Case(insert(10)), "goes on with more statements": Case(update(add(0)))}

# Writes that are retried in a transaction of a router, because they might change the owner of a document.
IN_TRANSACTION = {
    "update in a transaction": Case(update(add(0), stmtIds=[3])),
    "upsert in a transaction": Case(update(add(10, **UPSERT), stmtIds=[0])),
    "findAndModify in a transaction": Case(modify(10, update=SET, **UPSERT, new=True, stmtId=0)),
}

EXECUTED = {**CASES, **MISFITS, **GO_ON, **IN_TRANSACTION}

LOST = Session()
"""A session whose history is no longer complete when it is moved."""


def renumbered(value: Any, first: int) -> Any:  # noqa: ANN401 - as in a command
    """A command, part of one, or a reply, with its ids shifted."""
    if isinstance(value, Mapping):
        return {
            name: first + each if name in ("_id", "upserted") and isinstance(each, int) else renumbered(each, first)
            for name, each in value.items()
        }
    return [renumbered(each, first) for each in value] if isinstance(value, list) else value


@dataclass
class Moved:
    """A range that the test has moved, with its history.

    Attributes:
        donor: the mongod of its former owner.
        recipient: the daemon of its new owner.
        version: the version that routers send with its operations.
    """

    donor: str
    recipient: str
    version: Mapping[str, Any]

    async def retry(self, command: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The replies of donor and recipient."""
        async with connection(self.donor) as donor, connection(self.recipient) as recipient:
            expected = await reply_to(donor, NAMESPACE.db, command)
            versioned = {**command, "shardVersion": dict(self.version)}
            return expected, await reply_to(recipient, NAMESPACE.db, versioned)

    def in_transaction(self, session: Session, number: int, command: Command, *, begins: bool = True) -> Command:
        """A command for the recipient as part of a transaction that executes a retryable write."""
        start = {"startTransaction": True} if begins else {}
        return {**command, **session.child(number), **start, "shardVersion": dict(self.version)}

    async def documents(self, first: int) -> tuple[list[Command], list[Command]]:
        """The documents of a case on donor and recipient."""
        query = {"_id": {"$gte": first, "$lt": first + 100}, "a": 5}
        find = {"find": "c", "filter": query, "sort": {"_id": 1}, "batchSize": 1000}
        expected, found = await self.retry(find)
        return expected["cursor"]["firstBatch"], found["cursor"]["firstBatch"]


@asynccontextmanager
async def connection(address: str) -> AsyncIterator[Connection]:
    opened = await Connection.open(new_transport(), address, handshake=handshake_document("tests"))
    try:
        yield opened
    finally:
        opened.close()


@asynccontextmanager
async def mongod_of(member: Member) -> AsyncIterator[LocalMongod]:
    """A shard's mongod as its daemon sees it."""
    async with trio.open_nursery() as nursery:
        pools = ConnectionPools(new_transport(), lambda: handshake_document("tests"))
        nursery.start_soon(pools.run)
        yield LocalMongod(pools, member.mongod_plan.address, member.mongod_plan.address)
        nursery.cancel_scope.cancel()


async def move(donor: Member, recipient: Member, low: Command, high: Command) -> None:
    """Copy documents and history from one mongod to another."""
    async with mongod_of(donor) as source, mongod_of(recipient) as destination:
        history = await drained(await donor_history(source, NAMESPACE, low, high))
        table = HistoryTable(destination)
        await table.absorb(history)
        await table.absorb(history)  # twice is as good as once
        find = {"find": "c", "batchSize": 100_000, "filter": {"a": {"$gte": low["a"], "$lt": high["a"]}}}
        documents = (await source.command(NAMESPACE.db, find))["cursor"]["firstBatch"]
        await destination.write(NAMESPACE.db, {"insert": "c", "documents": documents})


async def lose_history(mongod: Connection, session: Session) -> None:
    """Make a mongod believe that its oplog does not reach back to the writes of a session."""
    query = {"_id.id": Binary.from_uuid(session.id)}
    lose = {"q": query, "u": {"$set": {"lastWriteOpTime.ts": Timestamp(1, 1)}}}
    update_it = {"update": "transactions", "updates": [lose], "writeConcern": {"w": "majority"}}
    assert (await reply_to(mongod, "config", update_it))["nModified"] == 1


@pytest.fixture(scope="module")
def sessions() -> dict[str, tuple[Session, int]]:
    """The session and the first statement id of each case."""
    return {name: (Session(), 1000 * position) for position, name in enumerate(EXECUTED)}


@pytest.fixture(scope="module")
def moved(mini: MiniCluster, sessions: dict[str, tuple[Session, int]]) -> Moved:
    """All cases' writes, executed on one shard and moved to another, whose daemon loads the history at its start."""
    sharded = ShardedNamespace(mini, str(NAMESPACE), {"a": 1}, "sh1")
    donor, recipient = (mini.shards[name].members[0] for name in ("sh0", "sh1"))

    async def execute_and_move() -> None:
        async with connection(donor.mongod_plan.address) as server:
            for name, case in EXECUTED.items():
                session, first = sessions[name]
                await reply_to(server, NAMESPACE.db, renumbered(insert(*range(10)), first))
                reply = await reply_to(server, NAMESPACE.db, session.write(5, renumbered(case.original, first)))
                assert reply["ok"] == 1.0, (name, reply)
                assert "writeErrors" not in reply, (name, reply)
            await reply_to(server, NAMESPACE.db, LOST.write(5, insert(-1)))
            await lose_history(server, LOST)
        await move(donor, recipient, {"a": 0}, {"a": 10})

    trio.run(execute_and_move)
    recipient.daemon.stop()
    recipient.daemon.start()
    recipient.wait_ready()
    return Moved(donor.mongod_plan.address, recipient.address, sharded.version("sh1"))


@pytest.mark.parametrize("name", CASES)
async def test_a_retry(moved: Moved, sessions: dict[str, tuple[Session, int]], name: str) -> None:
    session, first = sessions[name]
    case = CASES[name]
    command = session.write(case.number, renumbered(case.retry or case.original, first))

    for _ in range(2):
        expected, found = await moved.retry(command)
        assert found == expected
        assert list(found) == list(expected)
    expected_documents, found_documents = await moved.documents(first)
    assert found_documents == expected_documents


@pytest.mark.parametrize("name", MISFITS)
def test_a_retry_of_something_else(moved: Moved, sessions: dict[str, tuple[Session, int]], name: str) -> None:
    session, first = sessions[name]
    case = MISFITS[name]
    assert case.retry is not None
    expected, found = trio.run(moved.retry, session.write(case.number, renumbered(case.retry, first)))
    assert (found["code"], found["codeName"]) == (expected["code"], expected["codeName"])
    expected_documents, found_documents = trio.run(moved.documents, first)
    assert found_documents == expected_documents


@pytest.mark.parametrize(
    "command",
    [insert(-1), insert(-2, -3, ordered=False), update(add(-1)), delete(-1), modify(-1, update=SET)],
    ids=lambda command: next(iter(command)),
)
def test_a_retry_of_an_unknown_write(moved: Moved, command: Command) -> None:
    expected, found = trio.run(moved.retry, LOST.write(5, command))
    assert expected["codeName"] == "IncompleteTransactionHistory"
    assert found == expected


async def test_a_session_that_has_begun_a_newer_write_here(
    moved: Moved, sessions: dict[str, tuple[Session, int]]
) -> None:
    session, first = sessions["goes on with a newer number"]

    expected, found = await moved.retry(session.write(6, renumbered(insert(60), first)))
    assert found == expected == {"n": 1, "ok": 1.0}
    expected, found = await moved.retry(session.write(5, renumbered(insert(10), first)))
    assert expected["codeName"] == "TransactionTooOld"
    assert found == expected


def test_a_negative_number_is_not_an_old_one(moved: Moved, sessions: dict[str, tuple[Session, int]]) -> None:
    session, _ = sessions["goes on with a newer number"]
    expected, found = trio.run(moved.retry, session.write(-1, insert(10)))
    assert expected["codeName"] == "InvalidOptions"
    assert found == expected


async def test_what_the_recipient_executed_itself(moved: Moved, sessions: dict[str, tuple[Session, int]]) -> None:
    """The donor does not know such statements, while the recipient knows both parts."""
    session, first = sessions["goes on with more statements"]

    async with connection(moved.recipient) as recipient:
        for command, reply in [
            (update(add(1), add(2), stmtIds=[1, 2]), {"n": 2, "nModified": 2, "ok": 1.0}),
            (
                update(add(2), add(0), add(1), add(3), stmtIds=[2, 0, 1, 3]),
                {"n": 4, "retriedStmtIds": [2, 0, 1], "nModified": 4, "ok": 1.0},
            ),
        ]:
            versioned = {**session.write(5, renumbered(command, first)), "shardVersion": dict(moved.version)}
            assert await reply_to(recipient, NAMESPACE.db, versioned) == reply


@pytest.mark.parametrize("name", IN_TRANSACTION)
async def test_a_retry_in_a_transaction_executes_nothing(
    moved: Moved, sessions: dict[str, tuple[Session, int]], name: str
) -> None:
    session, first = sessions[name]
    command = renumbered(IN_TRANSACTION[name].original, first)

    async with connection(moved.recipient) as recipient:
        retried = await reply_to(recipient, NAMESPACE.db, moved.in_transaction(session, 5, command))
        assert retried.keys() & {"retriedStmtIds", "retriedStmtId"}, retried
        inserted = moved.in_transaction(session, 5, renumbered(insert(60, stmtIds=[-1]), first), begins=False)
        assert (await reply_to(recipient, NAMESPACE.db, inserted))["n"] == 1  # a statement without history
        ending = {"commitTransaction": 1, **session.child(5)}
        assert (await reply_to(recipient, "admin", ending))["ok"] == 1
        directly = {**session.write(5, command), "shardVersion": dict(moved.version)}
        expected = await reply_to(recipient, NAMESPACE.db, directly)
        assert {**retried, "readOnly": None} == {**expected, "readOnly": None}
    expected_documents, found_documents = await moved.documents(first)
    added = [{"_id": first + 60, "a": 5}]
    assert found_documents == expected_documents + added


async def test_an_older_write_in_a_transaction_is_refused(
    moved: Moved, sessions: dict[str, tuple[Session, int]]
) -> None:
    session, first = sessions["insert"]
    command = renumbered(update(add(0), stmtIds=[0]), first)

    async with connection(moved.recipient) as recipient:
        reply = await reply_to(recipient, NAMESPACE.db, moved.in_transaction(session, 4, command))
    assert reply["codeName"] == "TransactionTooOld"
