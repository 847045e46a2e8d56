"""Work that is done in the reactor while it only waits for sockets, and in a task of trio's whenever it does more.

A request loop is a succession of steps, each of them a coroutine like any other: that of a client's connection serves
one request in each step. The reactor begins a step and runs it on when the socket that it waits for is readable. Before
a step does what takes a task (a timeout, a nursery, an event, a lock) it calls `in_own_task`; from there to its end it
is run by the request loop's task, where sockets are waited for with trio as well. Forgotten, that is an error that trio
itself raises: in the reactor there is no current task.

A task that is cancelled takes over what is under way, which meets the cancellation where it waits.
"""

from collections.abc import Callable, Coroutine, Generator
from enum import Enum, auto
from types import coroutine
from typing import Any, TypeVar

import trio
from trio.lowlevel import Abort, RaiseCancelT, current_task, reschedule, wait_task_rescheduled

from shardwright.wire.transport.reactor import REACTOR

F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, object]])
T = TypeVar("T")


class _Wish(Enum):
    """What a step that gives way in the reactor waits for."""

    SOCKET = auto()
    TASK = auto()


def may_run_in_reactor(function: F) -> F:
    """Mark a coroutine function that a request loop may run before it has called `in_own_task`.

    ``tests/test_reactor_rule.py`` sees to it that such functions await only each other until they leave the reactor.
    """
    return function


async def in_own_task() -> None:
    """Leave the reactor, if this is run by it: what follows in this step takes a task."""
    if REACTOR.loop is not None:
        await _until_in_task()


@coroutine
def until_resumed() -> Generator[_Wish, None, None]:
    """Leave the reactor until the request loop is resumed; for those who have seen to that."""
    yield _Wish.SOCKET


class RequestLoop:
    """A succession of steps.

    Args:
        begin: makes the coroutine of the next step, which returns whether there is to be another one.
    """

    __slots__ = ("_begin", "_failure", "_is_finished", "_is_task_wanted", "_step", "_task")

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        self._begin = begin
        self._step: Coroutine[Any, Any, bool] | None = None
        self._task: trio.lowlevel.Task | None = None
        self._is_task_wanted = False
        self._is_finished = False
        self._failure: BaseException | None = None

    async def run(self) -> None:
        """Do all steps; the calling task is the request loop's own. Raises what a step raises."""
        if not REACTOR.is_running:
            while await self._begin():
                pass
            return
        while not self._is_finished:
            await self._run_in_reactor()
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure
            if self._step is not None:
                step, self._step = self._step, None
                self._is_finished = not await _rest_of(step)

    def resume(self) -> None:
        """Run on, in the reactor, what has given way; steps follow each other until one has to wait."""
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
        if self._task is not None:
            reschedule(self._task)
            self._task = None

    async def _run_in_reactor(self) -> None:
        """Begin a step in the reactor and return when the task is wanted: by a step, at the end, or to be cancelled."""
        self._is_task_wanted = False
        self.resume()
        if self._is_task_wanted:
            return

        def abort(_: RaiseCancelT) -> Abort:
            self._task = None
            return Abort.SUCCEEDED

        self._task = current_task()
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
    """What ``await step`` would be, for a coroutine that has been begun."""
    return (yield from step.__await__())
