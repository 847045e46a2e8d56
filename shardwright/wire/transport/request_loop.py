"""Work that runs in the reactor while it only waits for sockets, and in a trio task when it needs more.

A request loop is a sequence of steps, each an ordinary coroutine. On a client's connection, each step serves one
request. The reactor starts a step and resumes it when the socket that it waits for is readable. Before a step uses
anything that needs a task (a timeout, a nursery, an event, a lock) it calls `in_own_task`. From there to its end it
runs in the request loop's task, where trio also waits for sockets. If the call was forgotten, trio itself raises an
error, because there is no current task in the reactor.

When the task is cancelled, it takes over the current step, which is cancelled where it waits. It does the same when a
step is interrupted, and continues with the next one.
"""

from collections.abc import Awaitable, Callable, Coroutine, Generator
from enum import Enum, auto
from types import coroutine
from typing import Any, TypeVar

import trio
from trio.lowlevel import Abort, RaiseCancelT, current_task, reschedule, wait_task_rescheduled

from shardwright.wire.transport.reactor import REACTOR

F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, object]])
T = TypeVar("T")


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
