"""Frames posted in the reactor are sent after all received messages have been processed, whole and in order."""

import socket
from contextlib import suppress

import pytest
import trio

from shardwright.wire.transport.reactor import RequestLoop, in_own_task
from tests.wire.transport.test_request_loop import Peer, frame, is_in_task, peer, run, settled

_ROOM_BYTES = 8_000_000
"""More than any socket here holds."""


def arrived(there: Peer) -> bytes:
    """Return the bytes that the peer can read now."""
    there.socket.setblocking(False)
    found = b""
    with suppress(BlockingIOError):
        while piece := there.socket.recv(1 << 20):
            found += piece
    return found


def fill(there: Peer) -> int:
    """Send as much as the socket takes; returns how many bytes that are."""
    rest = there.stream.send_now(bytes(_ROOM_BYTES))
    assert rest is not None
    return _ROOM_BYTES - len(rest)


def test_posted_frames_are_sent_after_all_received_messages() -> None:
    async def main(first: Peer, nursery: trio.Nursery) -> None:
        seen: list[tuple[bytes, bytes]] = []
        async with peer() as second, trio.open_nursery() as answering:
            both = (first, second)

            def answers(there: Peer) -> RequestLoop:
                async def step() -> bool:
                    await there.stream.receive()
                    there.stream.post(frame(200))
                    seen.append((arrived(first), arrived(second)))
                    return True

                return RequestLoop(step)

            for there in both:
                answering.start_soon(answers(there).run)
            await settled()
            for there in both:
                there.socket.send(frame())
            await settled()
            assert seen == [(b"", b"")] * 2
            assert [arrived(there) for there in both] == [frame(200)] * 2
            answering.cancel_scope.cancel()

    run(main)


def test_in_a_task_frames_are_sent_at_once() -> None:
    async def main(there: Peer, nursery: trio.Nursery) -> None:
        assert there.stream.post(frame()) is None
        assert arrived(there) == frame()

    run(main)


def test_frames_keep_their_order() -> None:
    async def main(there: Peer, nursery: trio.Nursery) -> None:
        async def step() -> bool:
            await there.stream.receive()
            for length in (100, 101):
                there.stream.post(frame(length))
            await there.stream.send(frame(102))
            there.stream.post(frame(103))
            await in_own_task()
            there.stream.post(frame(104))
            return False

        there.socket.send(frame())
        await RequestLoop(step).run()
        assert arrived(there) == b"".join([frame(length) for length in range(100, 105)])

    run(main)


def test_bytes_that_do_not_fit_are_written_when_there_is_room() -> None:
    async def main(there: Peer, nursery: trio.Nursery) -> None:
        received: list[tuple[bytes | None, bool]] = []

        async def step() -> bool:
            await there.stream.receive()
            filled.append(fill(there))
            there.stream.post(frame(200))
            received.append((await there.stream.receive(), is_in_task()))
            return False

        filled: list[int] = []
        nursery.start_soon(RequestLoop(step).run)
        await settled()
        there.socket.send(frame())
        await settled()
        found = arrived(there)
        await settled()
        found += arrived(there)
        assert found == bytes(filled[0]) + frame(200)
        there.socket.send(frame(101))
        await settled()
        assert received == [(frame(101), True)]

    run(main)


def test_what_was_posted_before_another_wait_is_written_to_its_end() -> None:
    """Two peers get requests before the reply of the first is read; the second one's socket has no room yet."""

    async def main(first: Peer, nursery: trio.Nursery) -> None:
        async with peer() as second:
            received: list[bytes | None] = []

            async def step() -> bool:
                await first.stream.receive()
                filled.append(fill(second))
                second.stream.post(frame(200))
                received.append(await first.stream.receive())
                received.append(await second.stream.receive())
                return False

            filled: list[int] = []
            async with trio.open_nursery() as running:
                running.start_soon(RequestLoop(step).run)
                for length in (100, 101):
                    await settled()
                    first.socket.send(frame(length))
                found = b""
                while not filled or len(found) < filled[0] + 200:
                    await settled()
                    found += arrived(second)
                assert found == bytes(filled[0]) + frame(200)
                second.socket.send(frame(102))
            assert received == [frame(101), frame(102)]

    run(main)


def test_waiting_for_room_starts_at_once() -> None:
    """The request loop starts in its task, so the frame is written when the reactor is about to wait for long."""

    async def main(there: Peer, nursery: trio.Nursery) -> None:
        async def step() -> bool:
            there.stream.post(frame(200))
            await there.stream.receive()
            return False

        filled = fill(there)
        nursery.start_soon(RequestLoop(step).run)
        found = await trio.to_thread.run_sync(read, there, filled + 200)
        assert found == bytes(filled) + frame(200)
        there.socket.send(frame())

    def read(there: Peer, count: int) -> bytes:
        there.socket.setblocking(True)
        there.socket.settimeout(5)
        found = b""
        while len(found) < count:
            found += there.socket.recv(1 << 20)
        return found

    run(main)


def test_a_peer_that_sends_more_than_it_reads_is_waited_for() -> None:
    count, length = 10, 20_000

    async def main(there: Peer, nursery: trio.Nursery) -> None:
        served: list[bool] = []

        async def step() -> bool:
            await there.stream.receive()
            rest = there.stream.post(frame(length))
            if rest is not None:
                await there.stream.send_rest(rest)
            served.append(True)
            return True

        there.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        nursery.start_soon(RequestLoop(step).run)
        for _ in range(count):
            await there.trio.send_all(frame())
            await settled()
        assert len(served) < count
        received = 0
        while received < count * length:
            received += len(await there.trio.receive_some())
        await settled()
        assert len(served) == count
        nursery.cancel_scope.cancel()

    run(main)


def test_the_error_is_raised_where_the_reply_is_awaited() -> None:
    async def main(there: Peer, nursery: trio.Nursery) -> None:
        async def step() -> bool:
            await there.stream.receive()
            there.stream.socket.shutdown(socket.SHUT_WR)
            there.stream.post(frame())
            await there.stream.receive()
            return False

        there.socket.send(frame())
        with pytest.raises(BrokenPipeError):
            await RequestLoop(step).run()

    run(main)


def test_closing_sends_posted_frames() -> None:
    async def main(there: Peer, nursery: trio.Nursery) -> None:
        async def step() -> bool:
            await there.stream.receive()
            there.stream.post(frame(200))
            there.stream.close()
            return False

        there.socket.send(frame())
        await RequestLoop(step).run()
        assert arrived(there) == frame(200)

    run(main)


def test_posted_frames_are_sent_despite_cancellation() -> None:
    async def main(there: Peer, nursery: trio.Nursery) -> None:
        async def step() -> bool:
            there.stream.post(frame(200))
            scope.cancel()
            await there.stream.receive()
            return True

        with trio.CancelScope() as scope:
            await RequestLoop(step).run()
        assert scope.cancelled_caught
        assert arrived(there) == frame(200)

    run(main)
