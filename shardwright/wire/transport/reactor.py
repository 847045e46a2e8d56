"""Waiting for sockets past trio's scheduler, for the few waits that every operation consists of.

A turn of trio's loop costs several times what there is to be done for a message that is only passed on. So a daemon
waits for trio: when trio has nothing to run and is about to wait, the reactor does, for its own sockets and for
whatever trio would wait for, in one epoll set that has trio's within it. What comes for a socket of its own it hands to
a callback at once; when there is work for trio, or trio's next deadline has come, it lets trio go on.

It is an instrument of trio's, the public way to be called before every wait. The one thing that trio does not tell is
its epoll descriptor (`_epoll_descriptor`); without it, or if nobody calls `Reactor.start`, all waits are trio's.
"""

import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Final

import trio

from shardwright.wire.logger import get_logger

if TYPE_CHECKING:
    from shardwright.wire.transport.request_loop import RequestLoop

logger = get_logger("wire.reactor")

HANG_UP: Final = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
"""The events that say that nothing more will come."""

_EVENTS_MAX: Final = 64
"""In one batch, so that a busy reactor does not keep trio from looking after its own."""


class Reactor(threading.local, trio.abc.Instrument):
    """Calls back when a socket has become readable; in each thread, where trio runs on its own, it is another one.

    Attributes:
        is_running: whether it does; if not, nothing may be watched.
        loop: the request loop that it is running at this moment; None in all code that trio runs.
        afterwards: what a request loop leaves to be done once everything that has come is worked on.
    """

    def __init__(self) -> None:
        self.is_running = False
        self.loop: RequestLoop | None = None
        self.afterwards: list[Callable[[], None]] = []
        self._callbacks: dict[int, Callable[[int], None]] = {}
        self._has_trio_work = False

    def start(self) -> bool:
        """Begin to wait for trio, from within `trio.run` and until it ends; whether that is possible."""
        descriptor = _epoll_descriptor()
        if descriptor is None:
            logger.warning("This version of trio does not expose its epoll descriptor; the reactor is off")
            return False
        self._epoll = select.epoll()
        self._epoll.register(descriptor, select.EPOLLIN)
        self._trio_descriptor = descriptor
        self._token = trio.lowlevel.current_trio_token()
        trio.lowlevel.add_instrument(self)
        self.is_running = True
        return True

    def watch(self, watched: socket.socket, on_readable: Callable[[int], None]) -> None:
        """Call back, with epoll's events, each time that more has come for a socket, and when its peer has closed.

        Each time means once for all that has come: whoever is called reads until nothing is left, or remembers that
        something may be. That costs no system call for each wait.
        """
        descriptor = watched.fileno()
        self._callbacks[descriptor] = on_readable
        self._epoll.register(descriptor, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)

    def unwatch(self, watched: socket.socket) -> None:
        """Stop watching; to be called before the socket is closed."""
        descriptor = watched.fileno()
        del self._callbacks[descriptor]
        self._epoll.unregister(descriptor)

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        """Called by trio when one of its tasks can go on."""
        self._has_trio_work = True

    def before_io_wait(self, timeout: float) -> None:
        """Called by trio when it is about to wait for so many seconds: wait in its place.

        When this returns trio waits all the same, though not for events that are there already. So it has to be woken
        when its tasks were scheduled meanwhile, or the time is up.
        """
        self._has_trio_work = False
        poll, callbacks = self._epoll.poll, self._callbacks
        is_polling = timeout <= 0
        deadline = monotonic() + timeout
        self._do_what_was_left()
        if self._has_trio_work:
            timeout = 0
        while True:
            is_trio_ready = False
            for descriptor, events in poll(timeout, _EVENTS_MAX):
                if descriptor == self._trio_descriptor:
                    is_trio_ready = True
                elif descriptor in callbacks:  # not so if a callback before has just closed it
                    callbacks[descriptor](events)
            self._do_what_was_left()
            if is_polling:
                return
            timeout = deadline - monotonic()
            if self._has_trio_work or timeout <= 0:
                with suppress(trio.RunFinishedError):  # it is just ending
                    self._token.run_sync_soon(_wake)
                return
            if is_trio_ready:
                return

    def _do_what_was_left(self) -> None:
        while self.afterwards:
            left, self.afterwards = self.afterwards, []
            for do in left:
                do()

    def after_run(self) -> None:
        """Called by trio when it has ended."""
        self.is_running = False
        self.afterwards.clear()
        self._callbacks.clear()
        self._epoll.close()


def _epoll_descriptor() -> int | None:
    """The descriptor of trio's epoll set, None if it is not where it was in the versions known."""
    try:
        from trio._core._run import GLOBAL_RUN_CONTEXT

        return GLOBAL_RUN_CONTEXT.runner.io_manager._epoll.fileno()
    except (ImportError, AttributeError):
        return None


def _wake() -> None:
    """Nothing is to be done but to go round trio's loop."""


REACTOR: Final = Reactor()
"""That of this thread."""
