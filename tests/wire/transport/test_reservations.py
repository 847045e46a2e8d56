"""Long replies are received only when there is room for them."""

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any

import bson
import pytest
import trio
import trio.testing

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.frames import FrameReader, Header
from shardwright.wire.message import op_msg, reply_document
from shardwright.wire.request import Request
from shardwright.wire.transport.client import Connection
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.reservations import SERVED_CLIENT, UnreadBounds
from shardwright.wire.transport.stream import FrameStream
from shardwright.wire.transport.transport import Transport
from tests.wire.transport.serving import RawClient, Serving, serving
from tests.wire.transport.test_unread import until

pytestmark = pytest.mark.usefixtures("both_ways_of_waiting")

REPLY_BYTES = 4 << 20
"""Much more than sockets hold."""

FRAME_BYTES = REPLY_BYTES + 1_024
PING = bson.encode({"ping": 1, "$db": "admin"})


@pytest.fixture(autouse=True)
def _room_for_three(transport: Transport) -> None:
    transport.unread_replies.bounds = UnreadBounds(total_bytes=3 * FRAME_BYTES)


class Shard:
    """Answers each request with a long reply.

    Attributes:
        connections: the number of open connections.
    """

    def __init__(self) -> None:
        self.connections = 0
        self.address = ""

    async def serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        reader = FrameReader()
        try:
            async for data in stream:
                reader.feed(bytes(data))
                while (frame := reader.next_frame()) is not None:
                    document = {"text": "x" * REPLY_BYTES, "ok": 1.0}
                    await stream.send_all(reply_document(Header(frame).request_id, document))
        except trio.BrokenResourceError:
            return
        finally:
            self.connections -= 1


@asynccontextmanager
async def in_front_of_shard(
    transport: Transport, *, replies: int = 1, is_read: bool = True
) -> AsyncIterator[tuple[Serving, Shard]]:
    """A server that requests ``replies`` long replies from a shard at once, and answers with the last."""
    shard = Shard()

    async def receive(into: list[dict[str, Any]]) -> None:
        connection = await Connection.open(transport, shard.address)
        try:
            into.append(await connection.command("admin", {"ping": 1}))
        finally:
            connection.close()

    async def answer(client: ClientConnection, request: Request) -> dict[str, Any]:
        client.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        if request.name == "hello":
            return {"ok": 1.0}
        if is_read:
            client.allow_interruption()
        received: list[dict[str, Any]] = []
        if replies == 1:
            await receive(received)
        else:
            async with trio.open_nursery() as nursery:
                for _ in range(replies):
                    nursery.start_soon(receive, received)
        return received[-1]

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, shard.serve, 0)
        shard.address = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        async with serving(answer, transport) as served:
            yield served, shard
        nursery.cancel_scope.cancel()


async def asked(served: Serving, count: int) -> list[RawClient]:
    clients = [await served.connect() for _ in range(count)]
    for client in clients:
        await client.send(op_msg(PING, request_id=1))
    return clients


@contextmanager
def no_room(transport: Transport) -> Iterator[None]:
    """In the block, others have reserved all memory."""
    reservations, size = transport.unread_replies.reservations, transport.unread_replies.bounds.total_bytes
    reservations.total_bytes += size
    transport.unread_replies.change_total(size)
    yield
    reservations.total_bytes -= size
    transport.unread_replies.change_total(-size)


async def left_by(served: Serving) -> None:
    await served.disconnect_all()
    await until(lambda: not served.server.clients)


async def test_unread_replies_never_exceed_the_limit(transport: Transport) -> None:
    transport.unread_replies.bounds = UnreadBounds(total_bytes=3 * FRAME_BYTES, patience_seconds=2.0)

    unread = transport.unread_replies
    async with in_front_of_shard(transport) as (served, shard):
        await asked(served, 12)
        await until(lambda: unread.clients_closed + unread.reservations.refused >= 9)
        other = await served.connect()
        await other.send(op_msg(bson.encode({"hello": 1, "$db": "admin"}), request_id=1))
        assert (await other.receive_document())["ok"]
        assert 2 * REPLY_BYTES < transport.unread_replies.peak_bytes <= transport.unread_replies.bounds.total_bytes
        await left_by(served)
        await until(lambda: not shard.connections)
        assert transport.unread_replies.total_bytes == 0


async def test_clients_that_read_take_turns_and_get_everything(transport: Transport) -> None:
    async with in_front_of_shard(transport) as (served, _):
        clients = await asked(served, 8)
        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(read_whole, client)
        assert transport.unread_replies.clients_closed == transport.unread_replies.reservations.refused == 0
        assert transport.unread_replies.peak_bytes <= transport.unread_replies.bounds.total_bytes


async def read_whole(client: RawClient) -> None:
    assert len((await client.receive_document())["text"]) == REPLY_BYTES


async def test_an_operation_that_needs_several_replies_does_not_wait_for_itself(transport: Transport) -> None:
    transport.unread_replies.bounds = UnreadBounds(total_bytes=FRAME_BYTES)

    async with in_front_of_shard(transport, replies=3) as (served, _):
        clients = await asked(served, 4)
        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(read_whole, client)
        assert transport.unread_replies.reservations.refused == 0


async def test_operations_that_need_several_replies_exceed_the_limit_one_at_a_time(transport: Transport) -> None:
    reservations, operations = transport.unread_replies.reservations, 3
    transport.unread_replies.bounds = UnreadBounds(total_bytes=operations * REPLY_BYTES)

    all_have_one = trio.Event()

    async def operation(client: ClientConnection) -> None:
        SERVED_CLIENT.set(client)
        await reservations.reserve(REPLY_BYTES)
        if reservations.total_bytes == operations * REPLY_BYTES:
            all_have_one.set()
        await all_have_one.wait()
        for _ in range(2):
            await trio.testing.wait_all_tasks_blocked()
            await reservations.reserve(REPLY_BYTES)
        reservations.release(client)

    with ExitStack() as open_sockets:
        async with trio.open_nursery() as nursery:
            for _ in range(operations):
                ours, _ = map(open_sockets.enter_context, socket.socketpair())
                client = ClientConnection(FrameStream(ours), "", transport.unread_replies)
                client.allow_interruption()
                nursery.start_soon(operation, client)
    assert transport.unread_replies.peak_bytes == (operations + 2) * REPLY_BYTES
    assert reservations.refused == 0


async def test_a_read_without_room_is_refused_and_its_connection_closed(transport: Transport) -> None:
    transport.unread_replies.bounds = UnreadBounds(patience_seconds=0.1)

    async with in_front_of_shard(transport) as (served, shard):
        with no_room(transport):
            (client,) = await asked(served, 1)
            assert (await client.receive_document())["code"] == ErrorCode.ExceededMemoryLimit
            await until(lambda: not shard.connections)
        await client.send(op_msg(PING, request_id=2))
        await read_whole(client)


async def test_the_reply_to_a_write_is_eventually_received(transport: Transport) -> None:
    transport.unread_replies.bounds = UnreadBounds(patience_seconds=0.1)

    async with in_front_of_shard(transport, is_read=False) as (served, _):
        with no_room(transport):
            (client,) = await asked(served, 1)
            await read_whole(client)


async def test_a_client_that_disconnects_while_waiting_for_room_is_removed(transport: Transport) -> None:
    async with in_front_of_shard(transport) as (served, shard):
        with no_room(transport):
            await asked(served, 3)
            await until(lambda: shard.connections == 3)
            await left_by(served)
            await until(lambda: not shard.connections)
