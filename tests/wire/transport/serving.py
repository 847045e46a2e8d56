"""A server on a real socket with the test's own handler, and clients for it."""

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import bson
import trio

from shardwright.wire.frames import FrameReader
from shardwright.wire.message import reply_document
from shardwright.wire.request import Request
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.reactor import REACTOR, in_own_task
from shardwright.wire.transport.server import Server
from shardwright.wire.transport.transport import Transport
from shardwright.wire.transport.unauthenticated_clients import Newcomers
from tests.transports import new_transport

Answer = Callable[[ClientConnection, Request], Awaitable[dict[str, Any] | None]]

SECONDS_MAX = 10

starts_reactor = False
"""Whether servers use the reactor, as the daemons' servers do; see the fixture `both_ways_of_waiting`."""


class RecordingHandler:
    """Answers with a function and records which clients connected and disconnected."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.opened: list[ClientConnection] = []
        self.closed: list[ClientConnection] = []
        self.someone_left = trio.Event()

    async def handle(self, client: ClientConnection, request: Request) -> bytes | None:
        await in_own_task()
        document = await self._answer(client, request)
        return None if document is None else reply_document(request.message.request_id, document)

    def connection_opened(self, client: ClientConnection) -> None:
        self.opened.append(client)

    def connection_closed(self, client: ClientConnection) -> None:
        self.closed.append(client)
        self.someone_left.set()


class Serving:
    """A server under test."""

    def __init__(self, server: Server, handler: RecordingHandler, port: int) -> None:
        self.server = server
        self.handler = handler
        self.port = port
        self.address = f"127.0.0.1:{port}"
        self._connected: list[RawClient] = []

    async def connect(self) -> "RawClient":
        """A connection that sends and receives raw bytes."""
        client = RawClient(await trio.open_tcp_stream("127.0.0.1", self.port))
        self._connected.append(client)
        return client

    async def disconnect_all(self) -> None:
        """Close the connections opened by `connect`."""
        for client in self._connected:
            await client.stream.aclose()


class RawClient:
    """A client that may violate the protocol."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._reader = FrameReader()

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def receive(self) -> bytes | None:
        """The next frame; None if the server has closed the connection."""
        while (frame := self._reader.next_frame()) is None:
            data = await self.stream.receive_some(65536)
            if not data:
                return None
            self._reader.feed(bytes(data))
        return frame

    async def receive_document(self) -> dict[str, Any]:
        frame = await self.receive()
        assert frame is not None
        return bson.decode(frame[21:])


def listen(port: int = 0) -> socket.socket:
    """A listening socket on the loopback interface."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(100)
    return listener


@asynccontextmanager
async def serving(
    answer: Answer,
    transport: Transport | None = None,
    *,
    connections_max: int = 100,
    port: int = 0,
    newcomers: Newcomers | None = None,
    handshakes_max: int | None = None,
) -> AsyncIterator[Serving]:
    """Run a server during the block."""
    handler = RecordingHandler(answer)
    server = Server(
        transport or new_transport(),
        handler,
        connections_max=connections_max,
        newcomers=newcomers,
        handshakes_max=handshakes_max,
    )
    listener = listen(port)
    port = listener.getsockname()[1]
    if starts_reactor:
        assert REACTOR.start()
    with trio.fail_after(SECONDS_MAX):
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve, [listener])
            served = Serving(server, handler, port)
            try:
                yield served
            finally:
                await served.disconnect_all()
                nursery.cancel_scope.cancel()


async def answer_ok(client: ClientConnection, request: Request) -> dict[str, Any]:
    """A reply that contains the name of the command."""
    return {"asked": request.name, "ok": 1.0}
