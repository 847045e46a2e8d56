"""Unread replies use a limited amount of memory, and do not hold connections that others need for long."""

import socket
from collections.abc import Callable
from typing import Any

import bson
import pytest
import trio

from shardwright.wire.message import op_msg
from shardwright.wire.request import Request
from shardwright.wire.transport.client import Connection
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.reply_memory import Relay, SlowClientError, UnreadReplies
from shardwright.wire.transport.reservations import UnreadBounds
from shardwright.wire.transport.stream import FrameStream
from shardwright.wire.transport.transport import Transport
from tests.wire.transport.serving import SECONDS_MAX, Serving, serving

pytestmark = pytest.mark.usefixtures("both_ways_of_waiting")

REPLY_BYTES = 4 << 20
"""Much more than sockets hold."""


async def answer_at_length(client: ClientConnection, request: Request) -> dict[str, Any]:
    client.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
    return {"text": "x" * REPLY_BYTES, "ok": 1.0}


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, up to a deadline."""
    with trio.fail_after(SECONDS_MAX):
        while not condition():
            await trio.lowlevel.checkpoint()


async def asked_without_reading(served: Serving, count: int) -> list[Any]:
    clients = [await served.connect() for _ in range(count)]
    for client in clients:
        await client.send(op_msg(bson.encode({"ping": 1, "$db": "admin"}), request_id=1))
    return clients


async def test_total_is_limited_by_disconnecting_the_slowest_client(transport: Transport) -> None:
    transport.unread_replies.bounds = UnreadBounds(total_bytes=3 * REPLY_BYTES, client_bytes=1 << 30)

    async with serving(answer_at_length, transport) as served:
        await asked_without_reading(served, 10)
        await until(lambda: transport.unread_replies.clients_closed >= 7)
        assert len(served.server.clients) <= 3
        assert 0 < transport.unread_replies.total_bytes <= 3 * REPLY_BYTES


async def test_client_with_too_much_unread_data_is_disconnected_after_a_while(transport: Transport) -> None:
    transport.unread_replies.bounds = UnreadBounds(client_bytes=REPLY_BYTES // 2, patience_seconds=0.05)

    async with serving(answer_at_length, transport) as served:
        await asked_without_reading(served, 1)
        await served.handler.someone_left.wait()
        assert transport.unread_replies.clients_closed == 1


async def test_additional_frames_count_too(transport: Transport) -> None:
    transport.unread_replies.bounds = UnreadBounds(client_bytes=REPLY_BYTES // 2, patience_seconds=0.05)

    async def answer_twice(client: ClientConnection, request: Request) -> dict[str, Any]:
        document = await answer_at_length(client, request)
        await client.send(op_msg(bson.encode(document), request_id=2))
        return document

    async with serving(answer_twice, transport) as served:
        await asked_without_reading(served, 1)
        await served.handler.someone_left.wait()
        assert transport.unread_replies.clients_closed == 1


async def test_client_that_reads_gets_everything(transport: Transport) -> None:
    async with serving(answer_at_length, transport) as served:
        (client,) = await asked_without_reading(served, 1)
        await until(lambda: transport.unread_replies.total_bytes > 0)
        assert len((await client.receive_document())["text"]) == REPLY_BYTES
        await until(lambda: transport.unread_replies.total_bytes == 0)
        assert transport.unread_replies.clients_closed == 0


class PooledRelay(Relay):
    """Forwards replies from a connection that others need."""

    @property
    def patience_seconds(self) -> float:
        return 0.05

    def begin(self, beginning: bytes) -> tuple[bytes, int] | None:
        return beginning, 10


def client_of(receiver: FrameStream, transport: Transport) -> ClientConnection:
    return ClientConnection(receiver, "", transport.unread_replies)


async def relay_to(transport: Transport, receiver: FrameStream, address: str, relay: Relay | None = None) -> bool:
    """Relay a long reply to a receiver; returns whether its source connection can be used again."""
    connection = await Connection.open(transport, address)
    try:
        frame = op_msg(bson.encode({"ping": 1, "$db": "admin"}), request_id=3)
        relay = relay or PooledRelay(client_of(receiver, transport))
        assert await connection.exchange_for(frame, relay) is None
        return bool((await connection.command("admin", {"ping": 1}))["ok"])
    finally:
        connection.close()


async def test_connection_is_returned_while_the_reply_waits(transport: Transport) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        receiver = FrameStream(ours)
        async with serving(answer_at_length, transport) as served:
            assert await relay_to(transport, receiver, served.address)
            assert receiver.backlog is not None
            async with trio.open_nursery() as nursery:
                nursery.start_soon(transport.unread_replies.send, receiver, receiver.backlog)
                reply = await FrameStream(theirs).receive()
        assert reply is not None
        assert len(bson.decode(reply[21:])["text"]) == REPLY_BYTES
        receiver.close()


async def test_client_is_disconnected_if_there_is_no_room_for_the_reply(transport: Transport) -> None:
    transport.unread_replies.bounds = UnreadBounds(client_bytes=1 << 20)

    ours, theirs = socket.socketpair()
    with theirs:
        receiver = FrameStream(ours)
        async with serving(answer_at_length, transport) as served:
            with pytest.raises(SlowClientError):
                await relay_to(transport, receiver, served.address)
        assert transport.unread_replies.clients_closed == 1
        receiver.close()


class BoundedRelay(PooledRelay):
    """Waits for a receiver that reads something, but not forever."""

    @property
    def patience_seconds(self) -> float:
        return 60

    @property
    def relay_seconds(self) -> float:
        return 0.2


async def read_slowly(theirs: socket.socket) -> None:
    """Read a little at a time until cancelled."""
    theirs.setblocking(False)
    while True:
        await trio.lowlevel.wait_readable(theirs)
        theirs.recv(512)
        await trio.sleep(0.01)


async def test_connection_is_returned_although_the_client_reads_a_little(transport: Transport) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        receiver = FrameStream(ours)
        async with serving(answer_at_length, transport) as served, trio.open_nursery() as nursery:
            nursery.start_soon(read_slowly, theirs)
            assert await relay_to(transport, receiver, served.address, BoundedRelay(client_of(receiver, transport)))
            nursery.cancel_scope.cancel()
        assert receiver.backlog is not None
        receiver.close()


async def test_client_that_reads_a_little_counts_as_one_that_reads_nothing() -> None:
    unread = UnreadReplies(UnreadBounds(patience_seconds=0.5))

    async def close_once_stalled() -> None:
        await until(unread.close_stalled)

    ours, theirs = socket.socketpair()
    with theirs:
        receiver = FrameStream(ours)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_slowly, theirs)
            nursery.start_soon(close_once_stalled)
            with pytest.raises(SlowClientError):
                await unread.send(receiver, memoryview(bytes(REPLY_BYTES)))
            nursery.cancel_scope.cancel()
        receiver.close()


class RecordingRelay(PooledRelay):
    """Records the total when the last bytes arrived."""

    counted_at_end = 0

    def end(self, rest: bytes) -> bytes:
        self.counted_at_end = self.client.unread_replies.total_bytes
        return rest


async def test_reply_counts_while_it_is_received(transport: Transport) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        receiver = FrameStream(ours)
        relay = RecordingRelay(client_of(receiver, transport))
        async with serving(answer_at_length, transport) as served:
            assert await relay_to(transport, receiver, served.address, relay)
        assert receiver.backlog is not None
        assert relay.counted_at_end == len(receiver.backlog)
        receiver.close()


def test_room_depends_on_the_total_and_on_one_client() -> None:
    unread = UnreadReplies(UnreadBounds(total_bytes=10, client_bytes=5))
    assert unread.has_room_for(5)
    assert not unread.has_room_for(6)
    unread.total_bytes = 6
    assert not unread.has_room_for(5)
