"""Connections and pools: reuse, limits, peers that restart, and cancelled callers."""

from typing import Any

import bson
import pytest
import trio

from shardwright.wire.errors import ConnectFailedError, ConnectionClosedError
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import op_msg
from shardwright.wire.request import Request
from shardwright.wire.transport.client import Connection
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.pool import ConnectionPools, Pool, PoolOptions
from tests.transports import new_transport
from tests.wire.transport.serving import answer_ok, serving


def hello() -> dict[str, Any]:
    return {"hello": 1, "$db": "admin"}


def request() -> bytes:
    return op_msg(bson.encode({"ping": 1, "$db": "admin"}), request_id=next_request_id())


class Gate:
    """An answer to ``ping`` that waits until it is opened."""

    def __init__(self) -> None:
        self.opened = trio.Event()
        self.waiting = 0

    async def answer(self, client: ClientConnection, request: Request) -> dict[str, Any]:
        if request.name == "ping":
            client.allow_interruption()
            self.waiting += 1
            await self.opened.wait()
        return {"ok": 1.0}


async def wait_until_waiting(gate: Gate, count: int) -> None:
    while gate.waiting < count:
        await trio.lowlevel.checkpoint()


async def test_connections_are_reused() -> None:
    async with serving(answer_ok) as served, trio.open_nursery() as nursery:
        pools = ConnectionPools(new_transport(), hello)
        nursery.start_soon(pools.run)
        for _ in range(10):
            await pools[served.address].exchange(request())
        assert len(served.handler.opened) == 1
        assert pools.statistics()[served.address].available == 1
        nursery.cancel_scope.cancel()


async def test_connections_are_kept_for_later_only_while_few_are_in_use() -> None:
    async with serving(answer_ok) as served, trio.open_nursery() as nursery:
        pools = ConnectionPools(new_transport(), hello, PoolOptions(asked_ahead_max=2))
        nursery.start_soon(pools.run)
        pool = pools[served.address]
        first = await pool.ask(request())
        assert pool.has_spare_connections
        second = await pool.ask(request())
        assert not pool.has_spare_connections
        await first.receive_answer(None)
        assert pool.has_spare_connections
        second.give_up()
        nursery.cancel_scope.cancel()


async def test_connections_are_limited_and_waiters_get_theirs() -> None:
    gate = Gate()
    async with serving(gate.answer) as served, trio.open_nursery() as nursery:
        pools = ConnectionPools(new_transport(), hello, PoolOptions(connections_max=3))
        nursery.start_soon(pools.run)
        pool = pools[served.address]
        async with trio.open_nursery() as callers:
            for _ in range(8):
                callers.start_soon(pool.exchange, request())
            await wait_until_waiting(gate, 3)
            assert pool.statistics().in_use == 3
            assert pool.statistics().waiting == 5
            gate.opened.set()
        assert len(served.handler.opened) == 3
        assert pool.statistics().available == 3
        nursery.cancel_scope.cancel()


async def test_a_caller_that_gives_up_closes_its_connection_and_frees_its_slot() -> None:
    gate = Gate()
    async with serving(gate.answer) as served, trio.open_nursery() as nursery:
        pools = ConnectionPools(new_transport(), hello, PoolOptions(connections_max=1))
        nursery.start_soon(pools.run)
        pool = pools[served.address]
        async with trio.open_nursery() as callers:
            callers.start_soon(pool.exchange, request())
            await wait_until_waiting(gate, 1)
            callers.cancel_scope.cancel()
        await served.handler.someone_left.wait()
        gate.opened.set()
        await pool.exchange(request())
        assert pool.statistics().created == 2
        nursery.cancel_scope.cancel()


async def test_a_restarted_host_gets_new_connections() -> None:
    async with trio.open_nursery() as nursery:
        pools = ConnectionPools(new_transport(), hello)
        nursery.start_soon(pools.run)
        async with serving(answer_ok) as served:
            await pools[served.address].exchange(request())
        while pools.statistics()[served.address].available:
            await trio.lowlevel.checkpoint()
        async with serving(answer_ok, port=served.port):
            await pools[served.address].exchange(request())
        nursery.cancel_scope.cancel()


async def test_no_listener_is_a_connect_failure_and_nothing_was_sent() -> None:
    async with serving(answer_ok) as served:
        pass
    with pytest.raises(ConnectFailedError) as caught:
        await Connection.open(new_transport(), served.address)
    assert not caught.value.sent


@pytest.mark.parametrize("address", ["a..b:1", "a" * 64 + ".example:1", "127.0.0.1:port", "127.0.0.1"])
async def test_an_impossible_address_is_a_connect_failure(address: str) -> None:
    with pytest.raises(ConnectFailedError):
        await Connection.open(new_transport(), address)


async def test_a_peer_that_closes_instead_of_answering_may_have_executed_the_request() -> None:
    async def leave(client: ClientConnection, request: Request) -> dict[str, Any] | None:
        if request.name == "hello":
            return {"ok": 1.0}
        client.is_finished = True
        return None

    async with serving(leave) as served:
        connection = await Connection.open(new_transport(), served.address, handshake=hello())
        with pytest.raises(ConnectionClosedError) as caught:
            await connection.exchange(request())
        assert caught.value.sent
        assert connection.is_closed


async def test_filling_a_pool_to_its_minimum_does_not_count_as_use() -> None:
    async with serving(answer_ok) as served, trio.open_nursery() as nursery:
        pools = ConnectionPools(new_transport(), hello, PoolOptions(connections_min=3))
        nursery.start_soon(pools.run)
        pool = pools[served.address]
        last_used = pool.last_used
        await pool.fill()
        assert pool.statistics().available == len(served.handler.opened) == 3
        assert pool.last_used == last_used
        pool.close_idle()
        await pool.fill()
        assert pool.statistics().created == 6
        nursery.cancel_scope.cancel()


async def test_unused_connections_are_closed_down_to_the_minimum() -> None:
    gate = Gate()
    async with serving(gate.answer) as served, trio.open_nursery() as nursery:
        pools = ConnectionPools(new_transport(), hello, PoolOptions(connections_min=2, idle_seconds_max=60))
        nursery.start_soon(pools.run)
        pool: Pool = pools[served.address]
        async with trio.open_nursery() as callers:
            for _ in range(5):
                callers.start_soon(pool.exchange, request())
            await wait_until_waiting(gate, 5)
            gate.opened.set()
        pool.reap(trio.current_time() + 30)
        assert pool.statistics().available == 5
        pool.reap(trio.current_time() + 61)
        assert pool.statistics().available == 2
        nursery.cancel_scope.cancel()


async def test_clean_up_after_the_pools_have_ended_still_works() -> None:
    async with serving(answer_ok) as served:
        pools = ConnectionPools(new_transport(), hello)
        pool = pools[served.address]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pools.run)
            await pool.exchange(request())
            nursery.cancel_scope.cancel()
        assert pool.statistics().available == 0
        await pool.exchange(request())
        assert pool.statistics().available == pool.statistics().in_use == 0, "it is not kept"
