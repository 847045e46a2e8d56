"""The server: faulty clients affect only themselves, requests are answered in order, and shutdown is orderly."""

import socket
import struct
from typing import Any

import bson
import pytest
import trio
from trio.lowlevel import wait_readable

from shardwright.wire import compression
from shardwright.wire.compression import Compressor
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.frames import OP_COMPRESSED, OP_QUERY, Header
from shardwright.wire.message import CHECKSUM_PRESENT, MORE_TO_COME, OpMsg, encode_sequence, op_msg, with_checksum
from shardwright.wire.request import Request
from shardwright.wire.transport.client_connection import ClientConnection
from tests.wire.transport.serving import Serving, answer_ok, serving

pytestmark = pytest.mark.usefixtures("both_ways_of_waiting")

PING = bson.encode({"ping": 1, "$db": "admin"})


def ping(request_id: int = 1, flags: int = 0) -> bytes:
    return op_msg(PING, request_id=request_id, flags=flags)


async def test_requests_sent_at_once_are_answered_in_order() -> None:
    async with serving(answer_ok) as served:
        client = await served.connect()
        await client.send(b"".join(ping(n) for n in range(1, 51)))
        for n in range(1, 51):
            frame = await client.receive()
            assert frame is not None
            assert Header(frame).response_to == n


async def test_a_malformed_frame_closes_its_own_connection_only() -> None:
    async with serving(answer_ok) as served:
        good, bad = await served.connect(), await served.connect()
        for garbage in (b"\xff" * 16, struct.pack("<iiii", 16, 1, 0, 999), op_msg(PING, request_id=1, flags=4)):
            await bad.send(garbage)
            assert await bad.receive() is None
            bad = await served.connect()
        assert served.server.protocol_errors == 3
        await good.send(ping())
        assert (await good.receive_document())["asked"] == "ping"


async def test_a_malformed_message_is_answered_and_the_connection_stays_open() -> None:
    async with serving(answer_ok) as served:
        client = await served.connect()
        two_bodies = b"\0" + PING
        for flags in (0, MORE_TO_COME):
            await client.send(op_msg(PING, request_id=7, flags=flags, sections=two_bodies))
        await client.send(with_checksum(op_msg(PING, request_id=8, sections=two_bodies)))
        await client.send(ping(9))
        for request_id, flags in ((7, 0), (8, CHECKSUM_PRESENT)):
            frame = await client.receive()
            assert frame is not None
            message = OpMsg(frame)
            assert (message.response_to, message.flags) == (request_id, flags)
            assert bson.decode(message.body)["code"] == 40430
        assert (await client.receive_document())["asked"] == "ping"
        assert served.server.protocol_errors == 0


async def test_a_checksum_is_answered_with_a_checksum() -> None:
    async with serving(answer_ok) as served:
        client = await served.connect()
        await client.send(with_checksum(ping()))
        frame = await client.receive()
        assert frame is not None
        message = OpMsg(frame)
        assert message.flags & CHECKSUM_PRESENT
        assert bson.decode(message.body)["asked"] == "ping"


async def test_a_request_with_more_to_come_gets_no_answer() -> None:
    async with serving(answer_ok) as served:
        client = await served.connect()
        await client.send(ping(1, MORE_TO_COME) + ping(2))
        frame = await client.receive()
        assert frame is not None
        assert Header(frame).response_to == 2


async def test_a_command_error_becomes_a_reply() -> None:
    async def refuse(client: ClientConnection, request: Request) -> dict[str, Any]:
        raise CommandError(ErrorCode.NamespaceNotFound, "no such thing", extra={"ns": "a.b"})

    async with serving(refuse) as served:
        client = await served.connect()
        await client.send(ping() + ping())
        for _ in range(2):
            assert await client.receive_document() == {
                "ok": 0.0,
                "errmsg": "no such thing",
                "code": 26,
                "codeName": "NamespaceNotFound",
                "ns": "a.b",
            }


async def test_an_internal_error_is_reported_and_closes_the_connection() -> None:
    async def fail(client: ClientConnection, request: Request) -> dict[str, Any]:
        raise ZeroDivisionError("oh")

    async with serving(fail) as served:
        client = await served.connect()
        await client.send(ping())
        assert (await client.receive_document())["codeName"] == "InternalError"
        assert await client.receive() is None


async def test_too_many_connections_are_refused_until_others_close() -> None:
    async with serving(answer_ok, connections_max=1) as served:
        first = await served.connect()
        await first.send(ping())
        assert await first.receive() is not None
        refused = await served.connect()
        assert await refused.receive() is None
        assert served.server.connections_refused == 1
        await first.stream.aclose()
        await served.handler.someone_left.wait()
        second = await served.connect()
        await second.send(ping())
        assert await second.receive() is not None


class Waiting:
    """A handler that never answers, with events for its start and its end."""

    def __init__(self, *, interruptible: bool) -> None:
        self.begun = trio.Event()
        self.cancelled = trio.Event()
        self.go_on = trio.Event()
        self._interruptible = interruptible

    async def answer(self, client: ClientConnection, request: Request) -> dict[str, Any]:
        if self._interruptible:
            client.allow_interruption()
        self.begun.set()
        try:
            await self.go_on.wait()
        except trio.Cancelled:
            self.cancelled.set()
            raise
        return {"ok": 1.0}


async def test_a_disconnect_interrupts_a_read() -> None:
    waiting = Waiting(interruptible=True)
    async with serving(waiting.answer) as served:
        client = await served.connect()
        await client.send(ping())
        await waiting.begun.wait()
        await client.stream.aclose()
        await waiting.cancelled.wait()


async def test_a_half_closed_socket_counts_as_a_disconnect() -> None:
    waiting = Waiting(interruptible=True)
    async with serving(waiting.answer) as served:
        client = await served.connect()
        await client.send(ping())
        await waiting.begun.wait()
        await client.stream.send_eof()
        await waiting.cancelled.wait()
        assert await client.receive() is None


async def test_a_disconnect_does_not_interrupt_a_write() -> None:
    waiting = Waiting(interruptible=False)
    async with serving(waiting.answer) as served:
        client = await served.connect()
        await client.send(ping())
        await waiting.begun.wait()
        await client.stream.aclose()
        while not served.handler.opened[0].is_disconnected:
            await trio.lowlevel.checkpoint()
        assert not waiting.cancelled.is_set()
        waiting.go_on.set()
        await served.handler.someone_left.wait()
        assert not waiting.cancelled.is_set()


async def test_drain_lets_running_operations_end_and_closes_the_rest() -> None:
    waiting = Waiting(interruptible=False)
    async with serving(waiting.answer) as served:
        idle, busy = await served.connect(), await served.connect()
        await busy.send(ping())
        await waiting.begun.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(served.server.drain, 5)
            assert await idle.receive() is None
            waiting.go_on.set()
            assert await busy.receive() is not None
            assert await busy.receive() is None


async def test_drain_does_not_wait_forever() -> None:
    waiting = Waiting(interruptible=False)
    async with serving(waiting.answer) as served:
        busy = await served.connect()
        await busy.send(ping())
        await waiting.begun.wait()
        await served.server.drain(0.01)
        await waiting.cancelled.wait()
        reply = await busy.receive_document()
        assert (reply["code"], reply["codeName"], reply["ok"]) == (11600, "InterruptedAtShutdown", 0)
        assert "errorLabels" not in reply
        assert await busy.receive() is None


@pytest.mark.parametrize(
    ("command", "label"),
    [
        ({"insert": "c"}, "RetryableWriteError"),
        ({"commitTransaction": 1, "autocommit": False}, "RetryableWriteError"),
        ({"abortTransaction": 1, "autocommit": False}, "RetryableWriteError"),
        ({"insert": "c", "autocommit": False}, "TransientTransactionError"),
    ],
    ids=["write", "commit", "abort", "statement"],
)
async def test_what_drain_interrupts_says_what_may_be_retried(command: dict[str, Any], label: str) -> None:
    waiting = Waiting(interruptible=False)
    async with serving(waiting.answer) as served:
        busy = await served.connect()
        await busy.send(op_msg(bson.encode({**command, "txnNumber": bson.Int64(1), "$db": "d"}), request_id=7))
        await waiting.begun.wait()
        await served.server.drain(0.01)
        reply = await busy.receive_document()
        assert (reply["code"], reply["errorLabels"]) == (11600, [label])


async def test_drain_sends_nothing_to_a_client_that_expects_no_reply() -> None:
    waiting = Waiting(interruptible=False)
    async with serving(waiting.answer) as served:
        busy = await served.connect()
        write = {"insert": "c", "$db": "d"}
        await busy.send(op_msg(bson.encode(write), request_id=7, flags=MORE_TO_COME))
        await waiting.begun.wait()
        await served.server.drain(0.01)
        assert await busy.receive() is None


@pytest.mark.parametrize("length", [60_000, 100_000])
async def test_drain_lets_a_slow_client_read_its_reply(length: int) -> None:
    async def answer_at_length(client: ClientConnection, request: Request) -> dict[str, Any]:
        client.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        return {"text": "x" * length, "ok": 1.0}

    async with serving(answer_at_length) as served:
        client = await served.connect()
        client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        await client.send(ping())
        await wait_readable(client.stream.socket)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(served.server.drain, 3600)
            await trio.sleep(0.01)
            assert len((await client.receive_document())["text"]) == length
            assert await client.receive() is None


async def answer_negotiating(client: ClientConnection, request: Request) -> dict[str, Any]:
    client.compressors = ("zlib",)
    return {"asked": request.name, "ok": 1.0}


async def test_a_compressed_request_is_answered_compressed() -> None:
    async with serving(answer_negotiating) as served:
        client = await served.connect()
        await client.send(ping())
        assert await client.receive() is not None
        await client.send(compression.compress(ping(9), Compressor.ZLIB))
        frame = await client.receive()
        assert frame is not None
        assert Header(frame).opcode == OP_COMPRESSED
        inner, compressor = compression.decompress(frame)
        assert compressor is Compressor.ZLIB
        assert Header(inner).response_to == 9


async def test_a_compressor_that_was_not_negotiated_closes_the_connection() -> None:
    async with serving(answer_negotiating) as served:
        client = await served.connect()
        await client.send(compression.compress(ping(), Compressor.SNAPPY))
        assert await client.receive() is None


async def ask_by_query(served: Serving, namespace: bytes, query: dict[str, Any]) -> tuple[Header, dict[str, Any]]:
    client = await served.connect()
    content = struct.pack("<i", 0) + namespace + b"\0" + struct.pack("<ii", 0, -1) + bson.encode(query)
    await client.send(struct.pack("<iiii", 16 + len(content), 5, 0, OP_QUERY) + content)
    frame = await client.receive()
    assert frame is not None
    return Header(frame), bson.decode(frame[36:])


async def test_the_legacy_hello_is_answered_with_op_reply() -> None:
    async with serving(answer_ok) as served:
        header, document = await ask_by_query(served, b"admin.$cmd", {"isMaster": 1})
        assert (header.opcode, header.response_to) == (1, 5)
        assert document["asked"] == "isMaster"


async def test_other_legacy_queries_are_refused() -> None:
    async with serving(answer_ok) as served:
        _, document = await ask_by_query(served, b"admin.$cmd", {"ping": 1})
        assert document["codeName"] == "UnsupportedOpQueryCommand"


async def test_a_message_that_takes_many_reads_arrives_whole() -> None:
    async def count(client: ClientConnection, request: Request) -> dict[str, Any]:
        return {"n": len(request.documents(b"documents")), "ok": 1.0}

    documents = [bson.encode({"_id": n, "text": "x" * 1000}) for n in range(20_000)]
    body = bson.encode({"insert": "c", "$db": "d"})
    async with serving(count) as served:
        client = await served.connect()
        await client.send(op_msg(body, request_id=1, sections=encode_sequence(b"documents", documents)))
        assert (await client.receive_document())["n"] == 20_000
