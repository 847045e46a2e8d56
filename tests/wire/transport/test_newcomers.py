"""Clients that have not logged in: limits of their time, number and messages."""

from collections.abc import Awaitable, Callable
from typing import Any

import bson
import trio
import trio.lowlevel

from shardwright.wire.compression import Compressor, compress
from shardwright.wire.limits import MESSAGE_BYTES_MAX
from shardwright.wire.request import Request
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.unauthenticated_clients import NewcomerLimits, Newcomers
from tests.wire.raw_connection import op_msg_frame
from tests.wire.transport.serving import RawClient, Serving, serving

HELLO: dict[str, Any] = {"hello": 1, "$db": "admin"}
START: dict[str, Any] = {"saslStart": 1, "$db": "admin"}
ASKING: dict[str, Any] = {"hello": 1, "saslSupportedMechs": "admin.ann", "$db": "admin"}
LIMITS = NewcomerLimits(log_in_seconds=30, idle_seconds=600, message_bytes=1000, failures=2, share=0.5)


class Clock:
    """The time, which passes when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def answer(client: ClientConnection, request: Request) -> dict[str, Any]:
    """The log-ins of these tests: the first argument says how one ends."""
    if request.name == "saslContinue":
        if request.get(b"saslContinue"):
            client.log_in_changed(is_logged_in=True)
        else:
            client.log_in_failed()
    if request.name == "logout":
        client.log_in_changed(is_logged_in=False)
    return {"ok": 1.0}


Body = Callable[[Serving, Newcomers, Clock], Awaitable[None]]


def with_newcomers(body: Body, *, connections_max: int = 100) -> None:
    async def run() -> None:
        clock = Clock()
        newcomers = Newcomers(LIMITS, connections_max, clock)
        async with serving(answer, newcomers=newcomers, connections_max=connections_max) as served:
            await body(served, newcomers, clock)

    trio.run(run)


async def ask(client: RawClient, command: dict[str, Any]) -> None:
    await client.send(op_msg_frame({**command, "$db": "admin"}))
    assert (await client.receive_document())["ok"] == 1.0


async def is_open(client: RawClient) -> bool:
    """Whether the server answers."""
    try:
        await client.send(op_msg_frame(HELLO))
        return await client.receive() is not None
    except trio.BrokenResourceError:
        return False


def test_a_client_that_sends_nothing_is_closed() -> None:
    async def body(served: Serving, newcomers: Newcomers, clock: Clock) -> None:
        silent, halting = await served.connect(), await served.connect()
        await halting.send(op_msg_frame(HELLO)[:20])
        while len(newcomers) < 2:
            await trio.lowlevel.checkpoint()
        clock.now += 29
        newcomers.close_overdue()
        assert newcomers.closed == 0
        clock.now += 2
        newcomers.close_overdue()
        assert await silent.receive() is None
        assert await halting.receive() is None
        assert (newcomers.closed, len(newcomers)) == (2, 0)

    with_newcomers(body)


def test_a_monitor_stays_and_a_log_in_does_not_last() -> None:
    async def body(served: Serving, newcomers: Newcomers, clock: Clock) -> None:
        monitor, slow, asking, logged_in = [await served.connect() for _ in range(4)]
        await ask(monitor, HELLO)
        await ask(slow, START)
        await ask(asking, ASKING)
        await ask(logged_in, START)
        await ask(logged_in, {"saslContinue": True})
        for _ in range(2):
            clock.now += 20
            for client, command in ((slow, START), (asking, ASKING)):
                await ask(client, command) if clock.now < 1030 else None
            newcomers.close_overdue()
        assert await slow.receive() is None
        assert await asking.receive() is None
        assert await is_open(monitor)
        clock.now += 601
        newcomers.close_overdue()
        assert await monitor.receive() is None
        assert await is_open(logged_in)
        await ask(logged_in, {"logout": 1})
        clock.now += 601
        newcomers.close_overdue()
        assert await logged_in.receive() is None

    with_newcomers(body)


def test_a_monitor_stops_in_the_middle_of_a_message() -> None:
    async def body(served: Serving, newcomers: Newcomers, clock: Clock) -> None:
        client = await served.connect()
        await ask(client, HELLO)
        await client.send(op_msg_frame(HELLO)[:20])
        while served.handler.opened[0].stream.is_between_frames:
            await trio.lowlevel.checkpoint()
        clock.now += 31
        newcomers.close_overdue()
        assert await client.receive() is None

    with_newcomers(body)


def test_the_longest_silent_one_makes_room() -> None:
    async def body(served: Serving, newcomers: Newcomers, clock: Clock) -> None:
        logged_in = await served.connect()
        await ask(logged_in, {"saslContinue": True})
        first, second = await served.connect(), await served.connect()
        for client in (first, second, first):
            clock.now += 1
            await ask(client, HELLO)
        third = await served.connect()
        await ask(third, HELLO)
        assert await second.receive() is None
        assert [await is_open(each) for each in (logged_in, first, third)] == [True, True, True]
        assert newcomers.closed == 1

    with_newcomers(body, connections_max=4)


def test_long_messages_need_a_log_in() -> None:
    long = op_msg_frame({"ping": "x" * 1000, "$db": "admin"})

    async def body(served: Serving, newcomers: Newcomers, clock: Clock) -> None:
        for frame in (long, long[:100], MESSAGE_BYTES_MAX.to_bytes(4, "little")):
            stranger = await served.connect()
            await stranger.send(frame)
            assert await stranger.receive() is None
        assert served.server.protocol_errors == 3
        client = await served.connect()
        await ask(client, {"saslContinue": True})
        await client.send(long)
        assert bson.decode((await client.receive() or b"")[21:])["ok"] == 1.0
        await ask(client, {"logout": 1})
        await client.send(long)
        assert await client.receive() is None

    with_newcomers(body)


def test_a_small_message_does_not_unpack_to_a_long_one() -> None:
    packed = compress(op_msg_frame({"ping": "x" * 5000, "$db": "admin"}), Compressor.ZLIB)
    assert len(packed) < LIMITS.message_bytes

    async def body(served: Serving, newcomers: Newcomers, clock: Clock) -> None:
        stranger = await served.connect()
        await stranger.send(packed)
        assert await stranger.receive() is None

    with_newcomers(body)


def test_failed_log_ins_end_the_connection() -> None:
    async def body(served: Serving, newcomers: Newcomers, clock: Clock) -> None:
        client = await served.connect()
        await ask(client, {"saslContinue": False})
        await ask(client, {"saslContinue": False})
        assert await client.receive() is None

    with_newcomers(body)
