"""The reactor waits for sockets without trio's scheduler, for the few waits that make up every operation.

An iteration of trio's loop costs several times the work on a message that is only forwarded. So the reactor waits in
trio's place, whenever trio has nothing to run and is about to wait. One epoll set contains the reactor's sockets and
trio's own set. Events of its own sockets go to callbacks at once. When there is work for trio, or trio's next deadline
has passed, trio continues.

It is a trio instrument, the public way to be called before every wait. Only trio's epoll descriptor is not public
(`_epoll_descriptor`). Without it, or without a call of `Reactor.start`, trio does all the waiting.

The reactor is not part of the `Transport` that a process passes around. Like trio's scheduler, it starts and ends with
a trio run, and a transport may outlive several runs. `in_own_task` needs to know which of the two schedulers runs the
calling code, which is a property of the thread, like `trio.lowlevel.current_task`. As an argument, the reactor would
pass through every function that may wait.

**Request loops** (`RequestLoop`) run in the reactor while they only wait for sockets, and in a trio task when they need
more. A request loop is a sequence of steps, each an ordinary coroutine. On a client's connection, each step serves one
request. The reactor starts a step and resumes it when the socket that it waits for is readable. Before a step uses
anything that needs a task (a timeout, a nursery, an event, a lock) it calls `in_own_task`. From there to its end it
runs in the request loop's task, where trio also waits for sockets. If the call was forgotten, trio itself raises an
error, because there is no current task in the reactor.

When the task is cancelled, it takes over the current step, which is cancelled where it waits. It does the same when a
step is interrupted, and continues with the next one.
"""

import select
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from enum import Enum, auto
from time import monotonic
from types import coroutine
from typing import Any, Final, Protocol, TypeVar

import trio
from trio.lowlevel import Abort, RaiseCancelT, current_task, reschedule, wait_task_rescheduled

from shardwright.wire.logger import get_logger

logger = get_logger("wire.reactor")

HANG_UP: Final = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
"""Events after which no more data arrives."""

_EVENTS_MAX: Final = 64
"""Most events in one batch, so that a busy reactor does not starve trio's tasks."""

F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, object]])
T = TypeVar("T")


class Resumable(Protocol):
    """Code that yields to the reactor, such as a `RequestLoop`."""

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
"""The reactor of the trio run in this thread."""


class _Wish(Enum):
    """Reason why a step yields in the reactor: a socket to wait for, or the need for a task."""

    SOCKET = auto()
    TASK = auto()


def may_run_in_reactor(function: F) -> F:
    """Mark a coroutine function that may run in the reactor, before `in_own_task` is called.

    ``tests/test_reactor_rule.py`` checks that such functions await only each other until they leave the reactor.
    """
    return function


async def in_own_task() -> None:
    """Leave the reactor, if running in it: the rest of this step needs a task."""
    if REACTOR.loop is not None:
        await _until_in_task()


@coroutine
def until_resumed() -> Generator[_Wish, None, None]:
    """Yield to the reactor until the request loop is resumed, which the caller must have arranged."""
    yield _Wish.SOCKET


class RequestLoop:
    """A sequence of steps.

    Args:
        begin: creates the coroutine of the next step, which returns whether another one should follow.
        after_interruption: ends an interrupted step in its place, with the same result.

    Attributes:
        task: the task that sleeps while the current step waits in the reactor; None if it runs, or is about to.
    """

    __slots__ = (
        "_after_interruption",
        "_begin",
        "_failure",
        "_interrupted_step",
        "_is_finished",
        "_is_task_wanted",
        "_scope",
        "_step",
        "task",
    )

    def __init__(
        self,
        begin: Callable[[], Coroutine[Any, Any, bool]],
        after_interruption: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self._begin = begin
        self._after_interruption = after_interruption
        self._scope: trio.CancelScope | None = None
        self._interrupted_step: Coroutine[Any, Any, bool] | None = None
        self._step: Coroutine[Any, Any, bool] | None = None
        self.task: trio.lowlevel.Task | None = None
        self._is_task_wanted = False
        self._is_finished = False
        self._failure: BaseException | None = None

    async def run(self) -> None:
        """Run all steps; the calling task is the request loop's own. Errors of a step propagate."""
        if not REACTOR.is_running:
            while await self._run_in_task(self._begin()):
                pass
            return
        while not self._is_finished:
            await self._run_in_reactor()
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure
            if self._step is not None:
                step, self._step = self._step, None
                self._is_finished = not await self._run_in_task(step)

    def interrupt(self) -> None:
        """Cancel the current step where it waits; the loop continues with the next one.

        Must be called by a task, and only while there is a step.
        """
        if self._scope is not None:
            self._scope.cancel()
            return
        self._interrupted_step = self._step
        self.leave_reactor()

    def leave_reactor(self) -> None:
        """Continue the current step in the task now, if it waits in the reactor. Must be called by a task."""
        if self.task is not None:
            reschedule(self.task)
            self.task = None

    def resume(self) -> None:
        """Continue in the reactor after a yield; steps follow each other until one has to wait."""
        REACTOR.loop = self
        try:
            while True:
                if self._step is None:
                    self._step = self._begin()
                try:
                    wish = self._step.send(None)
                except StopIteration as end:
                    self._step = None
                    if not end.value:
                        self._is_finished = True
                        break
                else:
                    if wish is _Wish.SOCKET:
                        return
                    break
        except BaseException as error:
            self._step = None
            self._failure = error
        finally:
            REACTOR.loop = None
        self._is_task_wanted = True
        if self.task is not None:
            reschedule(self.task)
            self.task = None

    async def _run_in_task(self, step: Coroutine[Any, Any, bool]) -> bool:
        """Run a step, or the rest of one, in the task; it can be interrupted."""
        with trio.CancelScope() as scope:
            if step is self._interrupted_step:
                scope.cancel()
            self._scope, self._interrupted_step = scope, None
            try:
                return await _rest_of(step)
            finally:
                self._scope = None
        assert self._after_interruption is not None, "an interrupted step has no ending"
        return await self._after_interruption()

    async def _run_in_reactor(self) -> None:
        """Start a step in the reactor; return when the task is needed: by a step, at the end, or for cancellation."""
        self._is_task_wanted = False
        self.resume()
        if self._is_task_wanted:
            return

        def abort(_: RaiseCancelT) -> Abort:
            self.task = None
            return Abort.SUCCEEDED

        self.task = current_task()
        try:
            await wait_task_rescheduled(abort)
        except trio.Cancelled:
            if self._step is None:
                raise


@coroutine
def _until_in_task() -> Generator[_Wish, None, None]:
    yield _Wish.TASK


@coroutine
def _rest_of(step: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Await a coroutine that has already been started."""
    return (yield from step.__await__())
