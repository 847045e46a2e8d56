"""Waiting for sockets without trio's scheduler, for the few waits that make up every operation.

An iteration of trio's loop costs several times the work on a message that is only forwarded. So the reactor waits in
trio's place, whenever trio has nothing to run and is about to wait. One epoll set contains the reactor's sockets and
trio's own set. Events of its own sockets go to callbacks at once. When there is work for trio, or trio's next deadline
has passed, trio continues.

It is a trio instrument, the public way to be called before every wait. Only trio's epoll descriptor is not public
(`_epoll_descriptor`). Without it, or without a call of `Reactor.start`, trio does all the waiting.
"""

import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Final, Protocol

import trio

from shardwright.wire.logger import get_logger

logger = get_logger("wire.reactor")

HANG_UP: Final = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
"""Events after which no more data arrives."""

_EVENTS_MAX: Final = 64
"""Most events in one batch, so that a busy reactor does not starve trio's tasks."""


class Resumable(Protocol):
    """Code that yields to the reactor, such as a `wire.transport.request_loop.RequestLoop`."""

    def resume(self) -> None:
        """Continue running."""


class Reactor(threading.local, trio.abc.Instrument):
    """Dispatcher of readable sockets to callbacks; each thread has its own, as each has its own trio run.

    Attributes:
        is_running: whether it has been started; otherwise nothing may be watched.
        loop: the request loop that it is currently running; None in all code that trio runs.
        afterwards: work that request loops defer until all received messages have been processed.
    """

    def __init__(self) -> None:
        self.is_running = False
        self.loop: Resumable | None = None
        self.afterwards: list[Callable[[], None]] = []
        self._callbacks: dict[int, Callable[[int], None]] = {}
        self._has_trio_work = False

    def start(self) -> bool:
        """Start waiting in trio's place, until the current `trio.run` ends; return whether that is possible."""
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
        """Call back with epoll's events whenever more data has arrived for a socket, and when its peer has closed.

        One call covers all data that has arrived. The callback's owner reads until nothing is left, or remembers that
        there may be more. So a wait costs no system call of its own.
        """
        descriptor = watched.fileno()
        self._callbacks[descriptor] = on_readable
        self._epoll.register(descriptor, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)

    def unwatch(self, watched: socket.socket) -> None:
        """Stop watching; must be called before the socket is closed."""
        descriptor = watched.fileno()
        del self._callbacks[descriptor]
        self._epoll.unregister(descriptor)

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        """Record that a task of trio has become runnable. Called by trio."""
        self._has_trio_work = True

    def before_io_wait(self, timeout: float) -> None:
        """Wait in place of trio, which calls this before it would wait for up to ``timeout`` seconds.

        Afterwards trio still waits, except for events that have already occurred. So it has to be woken if tasks have
        been scheduled or the time is up.
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
                elif descriptor in callbacks:  # otherwise an earlier callback has just closed it
                    try:
                        callbacks[descriptor](events)
                    except Exception:
                        _log_failure()
            self._do_what_was_left()
            if is_polling:
                return
            timeout = deadline - monotonic()
            if self._has_trio_work or timeout <= 0:
                with suppress(trio.RunFinishedError):  # the run is just ending
                    self._token.run_sync_soon(_wake)
                return
            if is_trio_ready:
                return

    def _do_what_was_left(self) -> None:
        while self.afterwards:
            left, self.afterwards = self.afterwards, []
            for do in left:
                try:
                    do()
                except Exception:
                    _log_failure()

    def after_run(self) -> None:
        """Release everything. Called by trio at the end of its run."""
        self.is_running = False
        self.afterwards.clear()
        self._callbacks.clear()
        self._epoll.close()


def _epoll_descriptor() -> int | None:
    """Return the descriptor of trio's epoll set; None if this version of trio keeps it elsewhere."""
    try:
        from trio._core._run import GLOBAL_RUN_CONTEXT

        return GLOBAL_RUN_CONTEXT.runner.io_manager._epoll.fileno()
    except (ImportError, AttributeError):
        return None


def _log_failure() -> None:
    """Log an unexpected exception of one connection.

    If it propagated, trio would remove the instrument, and with it all other connections.
    """
    logger.exception("Internal error in the reactor")


def _wake() -> None:
    """Do nothing; scheduling this makes trio's loop iterate."""


REACTOR: Final = Reactor()
"""The reactor of this thread."""
