"""Long messages are compressed in threads while other clients are served."""

import threading
from typing import Any

import bson
import pytest
import trio

from shardwright.wire import compression
from shardwright.wire.compression import Compressor
from shardwright.wire.frames import Header
from shardwright.wire.limits import MESSAGE_BYTES_MAX
from shardwright.wire.message import op_msg
from shardwright.wire.request import Request
from shardwright.wire.transport.answers import LONG_MESSAGE_BYTES
from shardwright.wire.transport.client_connection import ClientConnection
from tests.wire.transport.serving import SECONDS_MAX, RawClient, serving

pytestmark = pytest.mark.usefixtures("both_ways_of_waiting")

LONG_TEXT = "x" * LONG_MESSAGE_BYTES


async def answer_long_to_long(client: ClientConnection, request: Request) -> dict[str, Any]:
    client.compressors = ("zlib",)
    return {"text": LONG_TEXT if request.name == "long" else "", "ok": 1.0}


def compressed(command: dict[str, Any], request_id: int) -> bytes:
    frame = op_msg(bson.encode({**command, "$db": "admin"}), request_id=request_id)
    return compression.compress(frame, Compressor.ZLIB)


async def greeted(client: RawClient) -> None:
    await client.send(op_msg(bson.encode({"ping": 1, "$db": "admin"}), request_id=1))
    assert await client.receive() is not None


async def received_ids(client: RawClient, count: int) -> list[int]:
    frames = [await client.receive() for _ in range(count)]
    return [Header(compression.decompress(frame)[0]).response_to for frame in frames if frame is not None]


@pytest.mark.parametrize("held", ["compress", "decompress"])
async def test_others_are_served_while_a_long_message_is_compressed(monkeypatch: pytest.MonkeyPatch, held: str) -> None:
    begun, go_on = threading.Event(), threading.Event()
    real = getattr(compression, held)

    def hold(frame: bytes, *arguments: Compressor) -> Any:  # noqa: ANN401 - whatever the real one returns
        if threading.current_thread() is not threading.main_thread():
            begun.set()
            assert go_on.wait(SECONDS_MAX)
        return real(frame, *arguments)

    async with serving(answer_long_to_long) as served:
        patient, other = await served.connect(), await served.connect()
        await greeted(patient)
        request = {"long": 1} if held == "compress" else {"ping": 1, "text": LONG_TEXT}
        frames = compressed(request, 7) + compressed({"ping": 1}, 8)
        with monkeypatch.context() as patched:
            patched.setattr(compression, held, hold)
            await patient.send(frames)
            assert await trio.to_thread.run_sync(begun.wait, SECONDS_MAX)
            await greeted(other)
            go_on.set()
            assert await received_ids(patient, 2) == [7, 8]


@pytest.mark.parametrize("announced", [-1, LONG_MESSAGE_BYTES, MESSAGE_BYTES_MAX])
async def test_a_wrong_announced_size_closes_the_connection(announced: int) -> None:
    async with serving(answer_long_to_long) as served:
        client = await served.connect()
        await greeted(client)
        frame = bytearray(compressed({"ping": 1}, 7))
        frame[20:24] = announced.to_bytes(4, "little", signed=True)
        await client.send(bytes(frame))
        assert await client.receive() is None
