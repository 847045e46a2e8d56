"""Requests without a waiting client: their operations end, and cursors that they have opened are killed."""

from collections.abc import Awaitable, Callable
from typing import Any

import bson
import pytest
import trio
from bson.int64 import Int64

from shardwright.wire.frames import next_request_id
from shardwright.wire.message import op_msg
from shardwright.wire.request import Request
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.pool import ConnectionPools, Pool
from tests.transports import new_transport
from tests.wire.transport.serving import serving

CURSOR = {"cursor": {"firstBatch": [{"a": "x" * 100_000}], "id": Int64(7), "ns": "shop.c"}, "ok": 1.0}
LAST_BATCH = {"cursor": {"firstBatch": [], "id": Int64(0), "ns": "shop.c"}, "ok": 1.0}
FAILURE = {"ok": 0.0, "code": 279, "codeName": "ClientDisconnect", "errmsg": "gone"}

Abandon = Callable[[Pool, "Opener"], Awaitable[None]]


class Opener:
    """A server that answers ``find`` when it may, even if the client has half-closed its connection, as a mongod does.

    Attributes:
        reply: the answer to ``find``.
        asked: a ``find`` has arrived.
        may_answer: it is answered.
        killed: the cursors that were killed.
        has_killed: one was.
    """

    def __init__(self, reply: dict[str, Any]) -> None:
        self.reply = reply
        self.asked = trio.Event()
        self.may_answer = trio.Event()
        self.killed: list[Any] = []
        self.has_killed = trio.Event()

    async def answer(self, client: ClientConnection, request: Request) -> dict[str, Any]:
        if request.name == "find":
            self.asked.set()
            await self.may_answer.wait()
            return self.reply
        if request.name == "killCursors":
            assert request.db == "shop"
            self.killed.append((request.get(b"killCursors"), request.get(b"cursors")))
            self.has_killed.set()
        return {"ok": 1.0}


def find() -> bytes:
    return op_msg(bson.encode({"find": "c", "$db": "shop"}), request_id=next_request_id())


async def cancel_exchange(pool: Pool, server: Opener) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pool.exchange, find())
        await server.asked.wait()
        nursery.cancel_scope.cancel()


async def cancel_receiving(pool: Pool, server: Opener) -> None:
    asked = await pool.ask(find())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(asked.receive_answer, None)
        await server.asked.wait()
        nursery.cancel_scope.cancel()


async def give_up(pool: Pool, server: Opener) -> None:
    asked = await pool.ask(find())
    await server.asked.wait()
    asked.give_up()


async def give_up_at_once(pool: Pool, _: Opener) -> None:
    (await pool.ask(find())).give_up()


WAYS = (cancel_exchange, cancel_receiving, give_up, give_up_at_once)


async def run(server: Opener, scenario: Callable[[Pool], Awaitable[None]]) -> None:
    async with serving(server.answer) as served, trio.open_nursery() as nursery:
        pools = ConnectionPools(new_transport(), lambda: {"hello": 1, "$db": "admin"})
        await nursery.start(started, pools)
        await scenario(pools[served.address])
        server.may_answer.set()
        nursery.cancel_scope.cancel()


async def started(pools: ConnectionPools, task_status: trio.TaskStatus[None]) -> None:
    """Run the pools, and report when their tasks are there."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pools.run)
        for _ in range(3):
            await trio.lowlevel.checkpoint()
        task_status.started()


@pytest.mark.parametrize("abandon", WAYS)
async def test_a_cursor_that_is_opened_for_nobody_is_killed(abandon: Abandon) -> None:
    server = Opener(CURSOR)

    async def scenario(pool: Pool) -> None:
        await abandon(pool, server)
        assert pool.statistics().in_use == 0, "its connection counts no longer"
        server.may_answer.set()
        await server.has_killed.wait()
        assert server.killed == [("c", [7])]

    await run(server, scenario)


@pytest.mark.parametrize("reply", [LAST_BATCH, FAILURE, {"ok": 1.0}])
async def test_nothing_is_killed_if_no_cursor_is_open(reply: dict[str, Any]) -> None:
    server = Opener(reply)

    async def scenario(pool: Pool) -> None:
        await cancel_exchange(pool, server)
        server.may_answer.set()
        await pool.command("admin", {"ping": 1})
        server.reply, server.asked = CURSOR, trio.Event()
        await cancel_exchange(pool, server)
        await server.has_killed.wait()
        assert server.killed == [("c", [7])]

    await run(server, scenario)


async def test_without_the_task_that_receives_replies_the_connection_is_closed() -> None:
    server = Opener(CURSOR)
    async with serving(server.answer) as served:
        pools = ConnectionPools(new_transport(), lambda: {"hello": 1, "$db": "admin"})
        await cancel_exchange(pools[served.address], server)
        server.may_answer.set()
        await served.handler.someone_left.wait()
        assert not server.killed
