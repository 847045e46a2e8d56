"""Request loops run in the reactor while they wait for sockets, and in their task for everything else."""

import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import bson
import pytest
import trio

from shardwright.wire.errors import RemoteProtocolError
from shardwright.wire.message import op_msg
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.reactor import REACTOR, RequestLoop, in_own_task
from shardwright.wire.transport.reply_memory import Relay
from shardwright.wire.transport.stream import FrameStream
from tests.transports import new_transport

_SECONDS_MAX = 10.0
_READ_BYTES = 65_536


def frame(length: int = 100) -> bytes:
    """A message of ``length`` bytes."""
    empty = len(op_msg(bson.encode({"text": ""}), request_id=1))
    return op_msg(bson.encode({"text": "x" * (length - empty)}), request_id=1)


def is_in_task() -> bool:
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return False
    return True


class Peer:
    """A stream that request loops read from, and the socket that writes to it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.stream = FrameStream(ours)
        self.socket = theirs
        self.trio = trio.SocketStream(trio.socket.from_stdlib_socket(theirs))


@asynccontextmanager
async def peer() -> AsyncIterator[Peer]:
    there = Peer()
    try:
        yield there
    finally:
        there.stream.close()
        there.socket.close()


def run(main: Callable[[Peer, trio.Nursery], Awaitable[None]], *, starts_reactor: bool = True) -> None:
    async def with_reactor() -> None:
        if starts_reactor:
            assert REACTOR.start()
        with trio.fail_after(_SECONDS_MAX):
            async with peer() as there, trio.open_nursery() as nursery:
                await main(there, nursery)

    trio.run(with_reactor)


async def settled() -> None:
    """Wait until everything else has run as far as it can."""
    await trio.sleep(0.01)


async def receive_all(there: Peer) -> None:
    """Receive frames until cancelled."""
    while await there.trio.receive_some():
        continue


@pytest.mark.parametrize("starts_reactor", [False, True])
def test_steps_follow_each_other_until_one_is_the_last(starts_reactor: bool) -> None:
    async def main(there: Peer, nursery: trio.Nursery) -> None:
        received: list[bytes | None] = []

        async def receive_one() -> bool:
            received.append(await there.stream.receive())
            return received[-1] is not None

        nursery.start_soon(RequestLoop(receive_one).run)
        for length in (100, 200):
            await there.trio.send_all(frame(length))
            await settled()
        await there.trio.aclose()
        await settled()
        assert received == [frame(100), frame(200), None]

    run(main, starts_reactor=starts_reactor)


def test_a_step_is_run_by_the_reactor_until_it_asks_for_its_task() -> None:
    async def main(there: Peer, nursery: trio.Nursery) -> None:
        places: list[bool] = []

        async def step() -> bool:
            await there.stream.receive()
            places.append(is_in_task())
            if len(places) == 3:
                await in_own_task()
                places.append(is_in_task())
                await trio.lowlevel.checkpoint()
                await there.stream.receive()
                places.append(is_in_task())
            return len(places) < 7

        nursery.start_soon(RequestLoop(step).run)
        for _ in range(7):
            await there.trio.send_all(frame())
            await settled()
        assert places == [False, False, False, True, True, False, False]

    run(main)


def test_an_exception_of_a_step_is_raised_in_the_task() -> None:
    async def main(there: Peer, nursery: trio.Nursery) -> None:
        async def fail() -> bool:
            await there.stream.receive()
            raise RemoteProtocolError("wrong")

        there.socket.send(frame())
        with pytest.raises(RemoteProtocolError):
            await RequestLoop(fail).run()

    run(main)


def test_a_cancelled_task_takes_over_the_current_step() -> None:
    async def main(there: Peer, nursery: trio.Nursery) -> None:
        seen: list[type[BaseException]] = []

        async def step() -> bool:
            try:
                await there.stream.receive()
            except BaseException as error:
                seen.append(type(error))
                raise
            return True

        with trio.CancelScope() as scope:
            async with trio.open_nursery() as inner:
                inner.start_soon(RequestLoop(step).run)
                await settled()
                scope.cancel()
        assert seen == [trio.Cancelled]

    run(main)


@pytest.mark.parametrize("starts_reactor", [False, True])
@pytest.mark.parametrize("leaves_reactor", [False, True])
def test_an_interrupted_step_is_followed_by_the_next(starts_reactor: bool, leaves_reactor: bool) -> None:
    async def main(there: Peer, nursery: trio.Nursery) -> None:
        seen: list[object] = []
        begun, begin = trio.open_memory_channel[None](10)[::-1]

        async def step() -> bool:
            if leaves_reactor:
                await in_own_task()
            try:
                begin.send_nowait(None)
                seen.append(await there.stream.receive())
            except BaseException as error:
                seen.append(type(error))
                raise
            return True

        async def after_interruption() -> bool:
            seen.append(is_in_task())
            return True

        loop = RequestLoop(step, after_interruption)
        nursery.start_soon(loop.run)
        for _ in range(2):
            await begun.receive()
            loop.interrupt()
        await begun.receive()
        await there.trio.send_all(frame())
        await begun.receive()
        assert seen == [trio.Cancelled, True, trio.Cancelled, True, frame()]
        nursery.cancel_scope.cancel()

    run(main, starts_reactor=starts_reactor)


def test_an_interrupted_step_may_be_the_last() -> None:
    async def main(there: Peer, nursery: trio.Nursery) -> None:
        async def step() -> bool:
            await there.stream.receive()
            return True

        async def after_interruption() -> bool:
            return False

        loop = RequestLoop(step, after_interruption)
        nursery.start_soon(loop.run)
        await settled()
        loop.interrupt()

    run(main)


def test_a_step_that_ends_before_its_interruption_is_not_followed_by_one() -> None:
    """Its frame arrives before the task, which is to take over, has run."""

    async def main(there: Peer, nursery: trio.Nursery) -> None:
        received: list[bytes | None] = []

        async def step() -> bool:
            received.append(await there.stream.receive())
            return received[-1] is not None

        loop = RequestLoop(step, lambda: pytest.fail("no step was interrupted"))
        nursery.start_soon(loop.run)
        await settled()
        there.socket.send(frame())
        loop.interrupt()
        loop.resume()
        await settled()
        await there.trio.aclose()
        await settled()
        assert received == [frame(), None]

    run(main)


def test_a_task_that_is_cancelled_by_its_own_step_takes_over() -> None:
    async def main(there: Peer, nursery: trio.Nursery) -> None:
        scope = trio.CancelScope()
        steps: list[bool] = []

        async def step() -> bool:
            await there.stream.receive()
            steps.append(is_in_task())
            scope.cancel()
            return True

        there.socket.send(frame())
        with scope:
            await RequestLoop(step).run()
        assert steps == [False]
        assert scope.cancelled_caught

    run(main)


def test_trio_refuses_task_primitives_in_the_reactor() -> None:
    async def main(there: Peer, nursery: trio.Nursery) -> None:
        async def forget() -> bool:
            await there.stream.receive()
            await trio.Event().wait()
            return False

        there.socket.send(frame())
        await settled()
        with pytest.raises(RuntimeError, match="async context"):
            await RequestLoop(forget).run()

    run(main)


@pytest.mark.parametrize("starts_reactor", [False, True])
@pytest.mark.parametrize(
    "lengths",
    [
        [100, 200, 300],
        [_READ_BYTES, 100],
        [2 * _READ_BYTES, 100],
        [_READ_BYTES + 100, _READ_BYTES],
        [100, 3 * _READ_BYTES, 100, _READ_BYTES - 100, 50],
        [40 * _READ_BYTES, 100],
    ],
)
def test_frames_sent_at_once_all_arrive(lengths: list[int], starts_reactor: bool) -> None:
    async def main(there: Peer, nursery: trio.Nursery) -> None:
        received: list[int] = []

        async def receive_one() -> bool:
            data = await there.stream.receive()
            if data is not None:
                received.append(len(data))
            return data is not None

        nursery.start_soon(RequestLoop(receive_one).run)
        await settled()
        await there.trio.send_all(b"".join(map(frame, lengths)))
        while len(received) < len(lengths):
            await settled()
        assert received == lengths
        await there.trio.aclose()

    run(main, starts_reactor=starts_reactor)


def test_data_that_arrives_during_a_step_is_found_by_the_next_wait() -> None:
    async def main(there: Peer, nursery: trio.Nursery) -> None:
        other = Peer()
        received: list[bytes | None] = []

        async def step() -> bool:
            received.append(await there.stream.receive())
            await other.stream.receive()
            return len(received) < 2

        nursery.start_soon(RequestLoop(step).run)
        await there.trio.send_all(frame())
        await settled()
        await there.trio.send_all(frame(300))
        await settled()
        assert received == [frame()]
        await other.trio.send_all(frame() + frame())
        await settled()
        assert received == [frame(), frame(300)]
        other.stream.close()
        other.socket.close()

    run(main)


def test_consecutive_long_frames_are_relayed() -> None:
    """It is unknown whether more data follows a relayed frame; still the next frame must not be received whole."""

    async def main(there: Peer, nursery: trio.Nursery) -> None:
        answer = frame(5_000_000)
        async with peer() as receiver:
            is_relayed: list[bool] = []

            async def step() -> bool:
                beginning = await there.stream.receive_beginning()
                assert beginning is not None
                is_beginning = len(beginning) < len(answer)
                if is_beginning:
                    client = ClientConnection(receiver.stream, "", new_transport().unread_replies)
                    await there.stream.relay(beginning, Relay(client))
                is_relayed.append(is_beginning)
                return True

            nursery.start_soon(RequestLoop(step).run)
            nursery.start_soon(receive_all, receiver)
            for number in range(1, 4):
                await there.trio.send_all(answer)
                while len(is_relayed) < number:
                    await settled()
                await settled()
            assert is_relayed == [True, True, True]
            nursery.cancel_scope.cancel()

    run(main)


def test_a_slow_receiver_is_waited_for_in_the_task() -> None:
    async def main(there: Peer, nursery: trio.Nursery) -> None:
        answer = frame(5_000_000)
        places: list[bool] = []

        async def step() -> bool:
            await there.stream.receive()
            await there.stream.send(answer)
            places.append(is_in_task())
            return False

        nursery.start_soon(RequestLoop(step).run)
        await there.trio.send_all(frame())
        received = 0
        while received < len(answer):
            received += len(await there.trio.receive_some())
        await settled()
        assert places == [True]

    run(main)


def test_request_loops_of_another_thread_do_not_use_this_reactor() -> None:
    places: list[bool] = []
    received: list[bytes | None] = []

    async def elsewhere(there: Peer, nursery: trio.Nursery) -> None:
        async def step() -> bool:
            places.append(is_in_task())
            received.append(await there.stream.receive())
            await in_own_task()
            places.append(is_in_task())
            return False

        nursery.start_soon(RequestLoop(step).run)
        await settled()
        await there.trio.send_all(frame())

    async def main(there: Peer, nursery: trio.Nursery) -> None:
        async def step() -> bool:
            await there.stream.receive()
            thread = threading.Thread(target=run, args=(elsewhere,), kwargs={"starts_reactor": False})
            thread.start()
            thread.join()
            places.append(is_in_task())
            return False

        nursery.start_soon(RequestLoop(step).run)
        await settled()
        await there.trio.send_all(frame())

    run(main)
    assert received == [frame()]
    assert places == [True, True, False]
