"""The end of a stream: its detection, and that no received data is kept."""

import socket
import struct
import tracemalloc

import pytest
import trio
import trio.testing

from shardwright.wire.frames import OP_MSG, FrameReader
from shardwright.wire.transport.stream import FrameStream

FRAME_BYTES = 16 << 20
PART_BYTES = 8 << 20


async def test_a_peer_that_has_left_is_noticed_before_its_last_message_is_read() -> None:
    ours, theirs = socket.socketpair()
    stream = FrameStream(ours)
    theirs.sendall(struct.pack("<iiii", FRAME_BYTES, 1, 0, OP_MSG))
    assert not stream.has_peer_left
    theirs.close()
    assert stream.has_peer_left
    stream.close()
    assert stream.has_peer_left


def test_a_message_cut_off_by_the_close_is_let_go() -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        stream, peer = FrameStream(ours), trio.SocketStream(trio.socket.from_stdlib_socket(theirs))

        async def receive() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await stream.receive()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            header = struct.pack("<iiii", FRAME_BYTES, 1, 0, OP_MSG)
            await peer.send_all(header + bytes(PART_BYTES))
            await trio.testing.wait_all_tasks_blocked()
            assert tracemalloc.get_traced_memory()[0] > PART_BYTES
            stream.backlog = memoryview(bytes(PART_BYTES))
            stream.close()
        await peer.aclose()
        assert stream.is_closed
        assert tracemalloc.get_traced_memory()[0] < PART_BYTES / 2

    tracemalloc.start()
    try:
        trio.run(main)
    finally:
        tracemalloc.stop()


def test_discarded_bytes_are_no_part_of_a_frame() -> None:
    reader = FrameReader()
    reader.feed((100).to_bytes(4, "little"))
    assert reader.next_frame() is None
    assert reader.bytes_missing == 96
    reader.discard()
    assert (reader.next_frame(), reader.bytes_missing, reader.available) == (None, 0, 0)
