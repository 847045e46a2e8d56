"""The reactor calls back for its sockets, and trio's own tasks, deadlines and threads work as without it."""

import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest
import trio

from shardwright.wire.transport import reactor as module
from shardwright.wire.transport.reactor import HANG_UP, Reactor

_SECONDS_MAX = 10.0


class Watched:
    """A socket watched by a reactor, its peer, and the events reported."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self.socket, self.peer = socket.socketpair()
        self.socket.setblocking(False)
        self.events: list[int] = []
        self.told = trio.Event()
        reactor.watch(self.socket, self.told_of)

    def close(self) -> None:
        self._reactor.unwatch(self.socket)
        self.socket.close()
        self.peer.close()

    def told_of(self, events: int) -> None:
        self.events.append(events)
        self.told.set()


@contextmanager
def watched(reactor: Reactor) -> Iterator[Watched]:
    found = Watched(reactor)
    try:
        yield found
    finally:
        found.close()


def run(main: Callable[[Reactor], Awaitable[None]]) -> None:
    """Run a test with its own reactor."""

    async def with_reactor() -> None:
        reactor = Reactor()
        assert reactor.start()
        with trio.fail_after(_SECONDS_MAX):
            await main(reactor)

    trio.run(with_reactor)


def test_data_is_reported_once_while_trio_is_idle() -> None:
    async def main(reactor: Reactor) -> None:
        with watched(reactor) as there:
            there.peer.send(b"some")
            await there.told.wait()
            await trio.sleep(0.01)
            assert len(there.events) == 1
            there.told = trio.Event()
            there.peer.send(b"more")
            await there.told.wait()
            assert there.socket.recv(100) == b"somemore"

    run(main)


def test_a_close_is_reported_together_with_the_last_data() -> None:
    async def main(reactor: Reactor) -> None:
        with watched(reactor) as there:
            there.peer.send(b"last")
            there.peer.close()
            await there.told.wait()
            assert any(events & HANG_UP for events in there.events)

    run(main)


def test_deadlines_are_kept() -> None:
    async def main(reactor: Reactor) -> None:
        started = trio.current_time()
        await trio.sleep(0.05)
        assert 0.05 <= trio.current_time() - started < 0.09

    run(main)


def test_deadlines_are_kept_while_the_reactor_is_busy() -> None:
    """Each callback triggers the next one, so that the reactor is never idle."""

    async def main(reactor: Reactor) -> None:
        with watched(reactor) as there:

            def keep_busy(events: int) -> None:
                there.socket.recv(100)
                there.peer.send(b"again")

            reactor.unwatch(there.socket)
            reactor.watch(there.socket, keep_busy)
            there.peer.send(b"first")
            started = trio.current_time()
            await trio.sleep(0.05)
            assert 0.05 <= trio.current_time() - started < 0.5

    run(main)


def test_sockets_of_trio_are_served_meanwhile() -> None:
    async def main(reactor: Reactor) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs, watched(reactor):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.lowlevel.wait_readable, ours)
                await trio.sleep(0.01)
                theirs.send(b"x")

    run(main)


def test_threads_can_call_trio() -> None:
    async def main(reactor: Reactor) -> None:
        with watched(reactor):
            assert await trio.to_thread.run_sync(lambda: 5) == 5

    run(main)


def test_a_task_made_runnable_by_a_callback_continues_at_once() -> None:
    async def main(reactor: Reactor) -> None:
        with watched(reactor) as there:
            async with trio.open_nursery() as nursery:

                async def note_time() -> None:
                    await there.told.wait()
                    nursery.cancel_scope.cancel()

                nursery.start_soon(note_time)
                nursery.start_soon(trio.sleep, _SECONDS_MAX / 2)
                await trio.sleep(0.01)
                started = trio.current_time()
                there.peer.send(b"x")
            assert trio.current_time() - started < _SECONDS_MAX / 4

    run(main)


def test_a_socket_closed_by_a_callback_is_not_reported() -> None:
    async def main(reactor: Reactor) -> None:
        with watched(reactor) as first, watched(reactor) as second:
            calls: list[str] = []

            def close_other(name: str, other: Watched) -> Callable[[int], None]:
                def called(events: int) -> None:
                    calls.append(name)
                    reactor.unwatch(other.socket)

                return called

            for name, this, other in (("first", first, second), ("second", second, first)):
                reactor.unwatch(this.socket)
                reactor.watch(this.socket, close_other(name, other))
                this.peer.send(b"x")
            await trio.sleep(0.01)
            assert len(calls) == 1
            closed = second if calls == ["first"] else first
            reactor.watch(closed.socket, closed.told_of)
            await closed.told.wait()

    run(main)


async def test_without_its_epoll_descriptor_trio_does_the_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_epoll_descriptor", lambda: None)
    reactor = Reactor()
    assert not reactor.start()
    assert not reactor.is_running
