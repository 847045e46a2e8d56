"""The reserved sessions on a real mongod: their writes, and ending transactions that were cut off."""

import time
from pathlib import Path
from typing import Any
from uuid import UUID

import bson
import pytest
import trio
import trio.testing
from bson import Int64, Timestamp
from bson.binary import Binary
from pymongo import MongoClient

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.daemon.users import RESERVED_SESSION_IDS
from shardwright.shardd.local_mongod.reserved_sessions import ReservedSessions, Transaction
from shardwright.sharding.namespace import Namespace
from shardwright.wire.errors import CommandError
from tests.shardd.lone_mongod import LoneMongod, lone_mongod

Client = MongoClient[dict[str, Any]]


def encoded(*documents: dict[str, Any]) -> list[bytes]:
    return [bson.encode(document) for document in documents]


async def stored(mongod: LocalMongod, namespace: Namespace) -> list[dict[str, Any]]:
    reply = await mongod.command(namespace.db, {"find": namespace.collection, "sort": {"_id": 1}})
    documents: list[dict[str, Any]] = reply["cursor"]["firstBatch"]
    return documents


def test_documents_are_inserted_and_deleted(lone: LoneMongod) -> None:
    namespace = Namespace("inserted", "c")

    async def test(mongod: LocalMongod) -> None:
        async with ReservedSessions(mongod).session() as session:
            await session.insert(namespace, encoded({"_id": 1}, {"_id": 2}))
            await session.insert(namespace, encoded({"_id": 3}), write_concern={"w": "majority"})
            assert [each["_id"] for each in await stored(mongod, namespace)] == [1, 2, 3]
            deleted = await session.delete(namespace, [{"q": {"_id": 2}, "limit": 1}, {"q": {"_id": 9}, "limit": 1}])
            assert deleted == 1
            assert [each["_id"] for each in await stored(mongod, namespace)] == [1, 3]

    lone.run(test)


def test_documents_are_inserted_unchanged(lone: LoneMongod) -> None:
    """mongod by itself would refuse some of them, and replace an empty timestamp by the present."""
    namespace = Namespace("exact", "c")
    documents: list[dict[str, Any]] = [
        {"_id": 1, "empty": Timestamp(0, 0), "b": 2, "a": 1},
        {"_id": 2, "zero": Int64(0), "below": {"empty": Timestamp(0, 0)}},
        {"_id": Timestamp(0, 0), "$dollar": Timestamp(0, 0), "dotted.name": Timestamp(0, 0)},
        {"_id": 4, "not": "valid"},
    ]

    async def test(mongod: LocalMongod) -> None:
        await mongod.command("exact", {"create": "c", "validator": {"not": {"$exists": False}}})
        async with ReservedSessions(mongod).session() as session:
            await session.insert(namespace, encoded(*documents))
        kept = await stored(mongod, namespace)
        assert sorted(map(bson.encode, kept)) == sorted(encoded(*documents))

    lone.run(test)


def test_internal_databases(lone: LoneMongod) -> None:
    namespace = Namespace("config", "things")

    async def test(mongod: LocalMongod) -> None:
        await mongod.command("config", {"create": "things"})
        async with ReservedSessions(mongod).session() as session:
            await session.insert(namespace, encoded({"_id": 1}, {"_id": 2}), write_concern={"w": "majority"})
            assert await session.delete(namespace, [{"q": {"_id": 2}, "limit": 1}]) == 1
            assert await stored(mongod, namespace) == [{"_id": 1}]

    lone.run(test)


def test_change_events_carry_a_reserved_session(lone: LoneMongod) -> None:
    namespace = Namespace("watched", "c")

    async def write(mongod: LocalMongod) -> None:
        async with ReservedSessions(mongod).session() as session:
            await session.insert(namespace, encoded({"_id": 1}))
            await session.delete(namespace, [{"q": {"_id": 1}, "limit": 1}])

    with Client(f"mongodb://{lone.address}/", directConnection=True) as client:
        client.watched.create_collection("c")
        with client.watched.c.watch(max_await_time_ms=100) as everything:
            lone.run(write)
            events = [everything.next(), everything.next()]
    assert [event["operationType"] for event in events] == ["insert", "delete"]
    ids = [event["lsid"]["id"] for event in events]
    assert {UUID(bytes=bytes(each)) for each in ids} <= set(RESERVED_SESSION_IDS)


def test_a_failed_transaction_leaves_nothing_behind(lone: LoneMongod) -> None:
    namespace = Namespace("failed", "c")

    async def test(mongod: LocalMongod) -> None:
        async with ReservedSessions(mongod).session() as session:
            await session.insert(namespace, encoded({"_id": 2}))
            with pytest.raises(CommandError) as error:
                await session.insert(namespace, encoded({"_id": 1}, {"_id": 2, "again": True}, {"_id": 3}))
            assert error.value.code_name == "DuplicateKey"
            assert error.value.extra["keyValue"] == {"_id": 2}
            assert error.value.extra["index"] == 1
            assert session.is_settled
            assert await stored(mongod, namespace) == [{"_id": 2}]
            await session.insert(namespace, encoded({"_id": 1}))
            assert len(await stored(mongod, namespace)) == 2

    lone.run(test)


def test_several_statements_are_one_transaction(lone: LoneMongod) -> None:
    namespace = Namespace("several", "c")

    async def test(mongod: LocalMongod) -> None:
        async with ReservedSessions(mongod).session() as session:
            replies = await session.run(
                "several",
                [
                    {"insert": "c", "documents": [{"_id": 1}]},
                    {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"a": 1}}}]},
                ],
            )
            assert [reply["n"] for reply in replies] == [1, 1]
            with pytest.raises(CommandError):
                await session.run("several", [{"insert": "c", "documents": [{"_id": 2}]}, {"insert": "c"}])
            assert await stored(mongod, namespace) == [{"_id": 1, "a": 1}]

    lone.run(test)


def test_a_task_waits_when_all_sessions_are_in_use(lone: LoneMongod) -> None:
    async def test(mongod: LocalMongod) -> None:
        sessions = ReservedSessions(mongod)
        async with trio.open_nursery() as nursery:
            release, all_lent = trio.Event(), trio.Event()
            lent: list[object] = []

            async def borrow() -> None:
                async with sessions.session() as session:
                    lent.append(session)
                    if len(lent) == len(RESERVED_SESSION_IDS):
                        all_lent.set()
                    await release.wait()

            for _ in range(len(RESERVED_SESSION_IDS) + 1):
                nursery.start_soon(borrow)
            await all_lent.wait()
            await trio.testing.wait_all_tasks_blocked()
            assert len(lent) == len(set(lent)) == len(RESERVED_SESSION_IDS)
            assert sessions.waiting_count == 1
            release.set()
        assert len(lent) == len(RESERVED_SESSION_IDS) + 1

    lone.run(test)


def test_a_transaction_that_was_cut_off_is_over_before_the_next_write(lone: LoneMongod) -> None:
    """It is cancelled between insert and commit, and would keep its document locked for a minute."""
    namespace = Namespace("cutoff", "c")

    async def test(mongod: LocalMongod) -> None:
        await mongod.command("cutoff", {"create": "c"})
        sessions = ReservedSessions(mongod)
        with trio.CancelScope() as scope:
            async with sessions.session() as cut_off:

                async def insert_and_leave(transaction: Transaction) -> None:
                    await transaction.run("cutoff", {"insert": "c"}, (b"documents", encoded({"_id": 1, "from": "old"})))
                    scope.cancel()
                    await trio.lowlevel.checkpoint()

                await cut_off.transact(insert_and_leave)
        assert scope.cancelled_caught
        assert not cut_off.is_settled
        async with sessions.session() as session:
            assert cut_off.is_settled
            await session.insert(namespace, encoded({"_id": 1, "from": "new"}))
        assert await stored(mongod, namespace) == [{"_id": 1, "from": "new"}]

    lone.run(test)


def test_sessions_of_a_former_process_are_settled_too(lone: LoneMongod) -> None:
    namespace = Namespace("former", "c")

    async def test(mongod: LocalMongod) -> None:
        await mongod.command("former", {"create": "c"})
        for session_id in RESERVED_SESSION_IDS[:3]:
            left = Transaction(mongod, {"id": Binary.from_uuid(session_id)}, time.time_ns() // 1_000)
            await left.run("former", {"insert": "c"}, (b"documents", encoded({"_id": str(session_id)})))
        async with ReservedSessions(mongod).session() as session:
            documents = encoded(*({"_id": str(each), "new": True} for each in RESERVED_SESSION_IDS[:3]))
            await session.insert(namespace, documents)
        assert all(document["new"] for document in await stored(mongod, namespace))

    lone.run(test)


@pytest.mark.parametrize("has_written", [True, False])
def test_numbers_rise_above_those_of_a_daemon_whose_clock_was_ahead(tmp_path: Path, has_written: bool) -> None:
    """Daemons used to number transactions by their clock, in microseconds. mongod stores only those that wrote."""
    namespace, a_year = Namespace("ahead", "c"), 365 * 24 * 3600 * 1_000_000

    async def test(mongod: LocalMongod) -> None:
        await mongod.command("ahead", {"create": "c"})
        number = time.time_ns() // 1_000 + a_year
        for session_id in RESERVED_SESSION_IDS:
            ahead = Transaction(mongod, {"id": Binary.from_uuid(session_id)}, number)
            await ahead.run("ahead", {"insert": "c"}, (b"documents", encoded({"_id": str(session_id)})))
            await ahead.commit({"w": 1})
            if not has_written:
                settling = Transaction(mongod, {"id": Binary.from_uuid(session_id)}, number + a_year)
                await settling.run("ahead", {"find": "c", "limit": 1, "singleBatch": True})
        # Each daemon settles the sessions, which raises the number only in mongod's memory.
        for _ in range(5):
            async with ReservedSessions(mongod).session():
                pass
        async with ReservedSessions(mongod).session() as session:
            await session.insert(namespace, encoded({"_id": 2}))
        assert len(await stored(mongod, namespace)) == len(RESERVED_SESSION_IDS) + 1

    # A separate mongod, because the transactions of all other tests would be too old for this one's sessions.
    with lone_mongod(tmp_path) as ahead_of_others:
        ahead_of_others.run(test)


def test_a_new_term_does_not_use_the_numbers_of_another_primary(lone: LoneMongod) -> None:
    """A retryable write would be taken for a retry of the other primary's, and not be executed."""

    async def test(mongod: LocalMongod) -> None:
        await mongod.command("terms", {"create": "c"})
        mine, others = ReservedSessions(mongod), ReservedSessions(mongod)
        async with mine.session() as session:
            await session.write_alone("terms", {"insert": "c", "documents": [{"_id": 1}]})
        for number in range(2, 5):
            async with others.session() as session:
                await session.write_alone("terms", {"insert": "c", "documents": [{"_id": number}]})
        async with trio.open_nursery() as nursery:
            await mine.begin_term(2, nursery)
        async with mine.session() as session:
            await session.write_alone("terms", {"insert": "c", "documents": [{"_id": 5}]})
        assert [each["_id"] for each in await stored(mongod, Namespace("terms", "c"))] == [1, 2, 3, 4, 5]

    lone.run(test)
