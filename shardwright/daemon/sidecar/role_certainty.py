"""Whether what is remembered of the mongod's role may be acted on at this moment.

A daemon that was stopped for a while (SIGSTOP, a virtual machine that was paused, a host out of memory) wakes up with
what it knew before. Meanwhile its mongod may have stepped down, another primary may have changed what is on this shard,
and the mongod may have been elected again. So after a pause nothing is believed until the mongod has answered a hello
that was sent after it. The pause is found at the moment of use, by a clock that also runs while the machine sleeps: the
task that watches for it may itself run later than the first operation.
"""

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import trio

from shardwright.daemon.sidecar.hello_mirror import HelloMirror

PAUSE_SECONDS_MAX: Final = 1.0
"""A process that did not run for longer than this cannot know what happened."""

_TICK_SECONDS: Final = 0.25


def seconds_since_boot() -> float:
    """A clock that never goes back and counts the time in which the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class RoleCertainty:
    """Tells whether the role that the mirror shows is that of now, and what is remembered belongs to it.

    Args:
        mirror: shows the newest hello.
        ask_hello: asks the mongod for a hello.
        clock: in seconds.
    """

    def __init__(
        self,
        mirror: HelloMirror,
        ask_hello: Callable[[], Awaitable[Mapping[str, Any]]],
        clock: Callable[[], float] = seconds_since_boot,
    ) -> None:
        self._mirror = mirror
        self._ask_hello = ask_hello
        self._clock = clock
        self._ticked = clock()
        self._pauses = 0
        self._is_doubted = False
        self._settled: int | None = None
        self._change = trio.Event()
        self._asking = trio.Lock()
        self._scopes: set[trio.CancelScope] = set()

    @property
    def is_certain(self) -> bool:
        """Whether the process has run without a pause since the last hello, and is prepared for the role it shows."""
        return not self._is_in_doubt() and self._mirror.term == self._settled

    def settle(self, term: int | None) -> None:
        """Nothing is remembered any more that belongs to another role than this one: a term as primary, or none."""
        self._settled = term
        self._change.set()
        self._change = trio.Event()

    @contextmanager
    def while_role_lasts(self) -> Iterator[trio.CancelScope]:
        """Cancel what waits in the block when the role changes: what it waits for may not come in another one."""
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                yield scope
            finally:
                self._scopes.discard(scope)

    def end_role(self) -> None:
        """The role is another one: nobody is to wait any longer for what was to happen in the last one."""
        for scope in tuple(self._scopes):
            scope.cancel()

    async def wait_certain(self) -> None:
        """Return when `is_certain`, asking the mongod if there was a pause.

        Raises:
            BackendError: the mongod does not answer.
        """
        while not self.is_certain:
            if self._is_doubted:
                await self._ask()
            else:
                await self._change.wait()

    async def present_term(self) -> int | None:
        """The term in which the mongod is primary, asking it if there was a pause; None when it is not.

        Raises:
            BackendError: the mongod does not answer.
        """
        while self._is_in_doubt():
            await self._ask()
        return self._mirror.term

    async def run(self) -> None:
        """Look at the clock until cancelled."""
        while True:
            await trio.sleep(_TICK_SECONDS)
            self._is_in_doubt()
            self._ticked = self._clock()

    def _is_in_doubt(self) -> bool:
        now = self._clock()
        if now - self._ticked > PAUSE_SECONDS_MAX:
            self._ticked = now
            self._pauses += 1
            self._is_doubted = True
        return self._is_doubted

    async def _ask(self) -> None:
        async with self._asking:
            if not self._is_doubted:  # those who asked before have found out
                return
            pauses = self._pauses
            hello = await self._ask_hello()
            self._is_in_doubt()
            if self._pauses == pauses:
                self._mirror.meet(hello)
                self._is_doubted = False
