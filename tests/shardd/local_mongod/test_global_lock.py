"""Creating collections with given UUIDs, and views, during open transactions."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from uuid import uuid4

import bson
import pytest
import trio
import trio.testing
from bson.binary import Binary
from bson.int64 import Int64

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.daemon.sidecar.user_write_block import GlobalLock
from shardwright.shardd.local_mongod.local_collections import create_with_uuid, describe
from shardwright.shardd.local_mongod.moved_contents import create_views
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from tests.shardd.lone_mongod import LoneMongod

READS: Final = 20
READ_MS_MAX: Final = 5_000


async def create_collection(mongod: LocalMongod, created: Namespace) -> None:
    await create_with_uuid(mongod, created, uuid4(), {}, None)


async def create_view(mongod: LocalMongod, created: Namespace) -> None:
    view = {"_id": str(created), "viewOn": "c", "pipeline": []}
    await create_views(mongod, created.db, [bson.encode(view)])


@pytest.mark.parametrize("create", [create_collection, create_view])
def test_others_do_not_wait_for_a_creation_that_waits_for_a_transaction(
    lone: LoneMongod, db: str, create: Callable[[LocalMongod, Namespace], Awaitable[None]]
) -> None:
    created = Namespace(db, "created")
    session: dict[str, Any] = {"lsid": {"id": Binary.from_uuid(uuid4())}, "txnNumber": Int64(1), "autocommit": False}

    async def test(mongod: LocalMongod) -> None:
        await mongod.write(db, {"insert": "c", "documents": [{"_id": 1}]})
        first = {"insert": "c", "documents": [{"_id": 2}], "startTransaction": True}
        await mongod.command(db, {**first, **session})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(create, mongod, created)
            for _ in range(READS):
                await mongod.command(db, {"find": "c", "maxTimeMS": READ_MS_MAX})
                await trio.sleep(0.02)
            assert await describe(mongod, created) is None
            await mongod.command("admin", {"commitTransaction": 1, **session})
        assert await describe(mongod, created) is not None

    lone.run(test)


def test_transactions_and_a_change_take_turns() -> None:
    """Without turns, a change would wait for ever where a new transaction begins before the last one has ended."""
    happened: list[str] = []

    async def transact(lock: GlobalLock, name: str) -> None:
        await lock.wait_turn()
        lock.begin(name)
        happened.append(f"{name} begins")
        await trio.sleep(0.1)
        happened.append(f"{name} ends")
        lock.end(name)

    async def attempt(_: Mapping[str, int]) -> None:
        happened.append("change begins")
        await trio.sleep(0.05)
        happened.append("change ends")

    async def test() -> None:
        lock = GlobalLock()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(transact, lock, "first")
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(lock.between_transactions, attempt)
            await trio.testing.wait_all_tasks_blocked()
            assert lock.is_wanted
            nursery.start_soon(transact, lock, "second")
        assert not lock.is_wanted

    trio.run(test, clock=trio.testing.MockClock(autojump_threshold=0))
    assert happened == ["first begins", "first ends", "change begins", "change ends", "second begins", "second ends"]


def test_a_change_and_transactions_wait_for_each_other_a_moment_only() -> None:
    """A transaction may be open as long as its client likes, and the attempt may have to wait in turn."""

    async def test() -> None:
        lock = GlobalLock()
        lock.begin("idle")
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lock.between_transactions, attempt)
            await trio.testing.wait_all_tasks_blocked()
            await lock.wait_turn()
            waits.append(trio.current_time() - began)

    async def attempt(_: Mapping[str, int]) -> None:
        waits.append(trio.current_time() - began_at)
        await trio.sleep(60)

    waits: list[float] = []
    clock = trio.testing.MockClock(autojump_threshold=0)
    began_at = clock.current_time()
    trio.run(test, clock=clock)
    assert waits == pytest.approx([0.5, 0.5])


def test_no_attempt_waits_for_ever() -> None:
    """A prepared transaction may wait for a write of its coordinator here, which waits for the attempt."""
    limits: list[int] = []

    async def attempt(max_time: Mapping[str, int]) -> None:
        limits.append(max_time["maxTimeMS"])
        if trio.current_time() < until:
            raise CommandError(ErrorCode.MaxTimeMSExpired, "operation exceeded time limit")

    async def test() -> None:
        await GlobalLock().between_transactions(attempt)

    clock = trio.testing.MockClock(autojump_threshold=0)
    until = clock.current_time() + 300
    trio.run(test, clock=clock)
    assert limits == sorted(limits)
    assert (limits[0], limits[-1]) == (100, 5_000)
