"""Forwarding long frames while they are still arriving."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import bson
import pytest
import trio

from shardwright.wire.errors import RemoteProtocolError
from shardwright.wire.message import op_msg
from shardwright.wire.transport.client import Connection
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.reply_memory import Relay
from shardwright.wire.transport.stream import FrameStream
from tests.transports import new_transport

REQUEST = op_msg(bson.encode({"find": "c", "$db": "test"}), request_id=5)


def answer(length: int, *, response_to: int = 5) -> bytes:
    return op_msg(bson.encode({"text": "x" * length, "ok": 1.0}), request_id=1, response_to=response_to)


class Surroundings:
    """A connection to a backend played by the test, and the client for its replies."""

    def __init__(self) -> None:
        transport = new_transport()
        ours, self.backend = socket.socketpair()
        asker, self.client = socket.socketpair()
        self.connection = Connection(transport, "backend:1", FrameStream(ours))
        self.asker = FrameStream(asker)
        self.asking = ClientConnection(self.asker, "", transport.unread_replies)

    async def answer_with(self, data: bytes, *, closes: bool = False) -> None:
        backend = trio.SocketStream(trio.socket.from_stdlib_socket(self.backend))
        await backend.receive_some()
        await backend.send_all(data)
        if closes:
            await backend.aclose()

    async def client_receives(self, length: int) -> bytes:
        received = b""
        client = trio.SocketStream(trio.socket.from_stdlib_socket(self.client))
        while len(received) < length:
            received += await client.receive_some()
        return received


@asynccontextmanager
async def relay() -> AsyncIterator[Surroundings]:
    relay = Surroundings()
    try:
        yield relay
    finally:
        relay.connection.close()
        relay.asker.close()
        relay.backend.close()
        relay.client.close()


@pytest.mark.parametrize("length", [1_000_000, 12_000_000])
async def test_a_long_reply_is_forwarded_and_not_returned(length: int) -> None:
    async with relay() as there, trio.open_nursery() as nursery:
        expected = answer(length)
        nursery.start_soon(there.answer_with, expected)
        received: list[bytes] = []

        async def receive() -> None:
            received.append(await there.client_receives(len(expected)))

        nursery.start_soon(receive)
        assert await there.connection.exchange_for(REQUEST, Relay(there.asking)) is None
        assert not there.connection.is_closed
        while not received:
            await trio.lowlevel.checkpoint()
        assert received == [expected]


@pytest.mark.parametrize("length", [10, 60_000, 70_000, 200_000])
async def test_a_short_reply_is_returned(length: int) -> None:
    async with relay() as there, trio.open_nursery() as nursery:
        nursery.start_soon(there.answer_with, answer(length))
        assert await there.connection.exchange_for(REQUEST, Relay(there.asking)) == answer(length)


async def test_a_truncated_reply_closes_the_connection() -> None:
    async with relay() as there, trio.open_nursery() as nursery:
        whole = answer(1_000_000)
        nursery.start_soon(lambda: there.answer_with(whole[:200_000], closes=True))
        with pytest.raises(RemoteProtocolError):
            await there.connection.exchange_for(REQUEST, Relay(there.asking))
        assert there.connection.is_closed


async def test_a_disconnected_client_is_not_mistaken_for_the_backend() -> None:
    async with relay() as there, trio.open_nursery() as nursery:
        there.client.close()
        nursery.start_soon(there.answer_with, answer(2_000_000)[:100_000])
        with pytest.raises(OSError, match="Broken pipe"):
            await there.connection.exchange_for(REQUEST, Relay(there.asking))
        assert there.connection.is_closed


async def test_nothing_is_sent_after_part_of_a_reply() -> None:
    async with relay() as there, trio.open_nursery() as nursery:
        beginning = answer(1_000_000)[:100_000]
        nursery.start_soon(lambda: there.answer_with(beginning, closes=True))
        with pytest.raises(RemoteProtocolError):
            await there.connection.exchange_for(REQUEST, Relay(there.asking))
        with pytest.raises(OSError, match="Broken pipe"):
            await there.asker.send(b"an error reply")
        assert await there.client_receives(len(beginning)) == beginning
        assert there.client.recv(1) == b""


class Changing(Relay):
    """Overwrites the first and last bytes of the text with capitals."""

    def begin(self, beginning: bytes) -> tuple[bytes, int]:
        return beginning.replace(b"x", b"X", 1), 20

    def end(self, rest: bytes) -> bytes:
        return rest.replace(b"x", b"Y", 1)


class Unwilling(Relay):
    """Declines every reply."""

    def begin(self, beginning: bytes) -> None:
        return None


async def test_a_reply_is_changed_while_it_is_forwarded() -> None:
    async with relay() as there, trio.open_nursery() as nursery:
        whole = answer(1_000_000)
        expected = whole[:-20].replace(b"x", b"X", 1) + whole[-20:].replace(b"x", b"Y", 1)
        nursery.start_soon(there.answer_with, whole)
        received: list[bytes] = []

        async def receive() -> None:
            received.append(await there.client_receives(len(whole)))

        nursery.start_soon(receive)
        assert await there.connection.exchange_for(REQUEST, Changing(there.asking)) is None
        while not received:
            await trio.lowlevel.checkpoint()
        assert received == [expected]


async def test_a_long_reply_declined_by_the_relay_is_returned() -> None:
    async with relay() as there, trio.open_nursery() as nursery:
        nursery.start_soon(there.answer_with, answer(1_000_000))
        assert await there.connection.exchange_for(REQUEST, Unwilling(there.asking)) == answer(1_000_000)


async def test_the_reply_to_another_request_is_not_forwarded() -> None:
    async with relay() as there, trio.open_nursery() as nursery:
        nursery.start_soon(lambda: there.answer_with(answer(1_000_000, response_to=6)[:50_000]))
        with pytest.raises(RemoteProtocolError):
            await there.connection.exchange_for(REQUEST, Relay(there.asking))
        assert there.connection.is_closed
