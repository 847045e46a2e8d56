"""Reliability of the cached role of the mongod after a pause of the daemon.

A daemon that was paused for a while (SIGSTOP, a suspended virtual machine, a host out of memory) resumes with outdated
state. In the meantime its mongod may have stepped down, another primary may have changed the data of this shard, and
the mongod may have been elected again. So after a pause the daemon trusts nothing until the mongod has answered a hello
that was sent afterwards. The pause is detected at the time of use, by a clock that also runs while the machine is
suspended. A task that watches the clock might itself run only after the first operation.

On a secondary the role does not matter, but the oplog entries applied by mongod during the pause do. The daemon
otherwise receives them a moment later.

The work of a term, in which mongod is primary without interruption, runs in a nursery that is cancelled when the term
ends. So no work of a former primary survives into the next term.
"""

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Protocol

import trio

from shardwright.daemon.sidecar.hello import HelloMirror
from shardwright.daemon.sidecar.term_fence import Reign, working_for
from shardwright.wire.logger import get_logger

PAUSE_SECONDS_MAX: Final = 1.0
"""A primary's process that was paused for longer than this may have missed an election."""

SECONDARY_PAUSE_SECONDS_MAX: Final = 0.3
"""A secondary's process that was paused for longer than this may have missed a whole move.

Moving a small range takes less than a second. A hello after a pause costs little, so this is as short as possible
without mistaking a busy processor for a pause.
"""

_TICK_SECONDS: Final = 0.1

_IN_BETWEEN: Final = -1
"""Differs from every term, and from None."""


seconds_since_boot: Final = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
"""A monotonic clock that also runs while the machine is suspended."""


class RoleCertainty:
    """The certainty that the role in the mirror is current, and that the daemon's state belongs to it.

    Methods that access mongod raise BackendError if it does not answer.
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
        self._role_changes = 0
        self._change = trio.Event()
        self._asking = trio.Lock()
        self._catch_up: Callable[[], Awaitable[None]] | None = None
        self._scopes: set[trio.CancelScope] = set()

    @property
    def is_certain(self) -> bool:
        """Whether the process has not been paused since the last hello, and is settled in the role it shows."""
        term = self._mirror.term
        if self._clock() - self._ticked > (SECONDARY_PAUSE_SECONDS_MAX if term is None else PAUSE_SECONDS_MAX):
            return not self._is_in_doubt() and term == self._settled
        return term == self._settled and not self._is_doubted

    def settle(self, term: int | None) -> None:
        """Record that no state of another role is left; the role is a term as primary, or None."""
        self._settled = term
        self._change.set()
        self._change = trio.Event()

    async def wait_settled(self) -> None:
        """Wait until no state of another role than the mirror's is left."""
        while self._mirror.term != self._settled:
            await self._change.wait()

    def catch_up_by(self, catch_up: Callable[[], Awaitable[None]]) -> None:
        """Register ``catch_up``, which a secondary runs after each pause before it relies on cached state.

        Its mongod may have applied much during the pause. The call is cancelled if the role changes. It raises
        BackendError if the mongod does not answer.
        """
        self._catch_up = catch_up

    @contextmanager
    def while_role_lasts(self) -> Iterator[trio.CancelScope]:
        """Cancel the block when the role changes, because the awaited event may never happen in another role."""
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                yield scope
            finally:
                self._scopes.discard(scope)

    def end_role(self) -> None:
        """Record a change of role: nothing is settled, and waits for events of the previous role are cancelled."""
        self._settled = _IN_BETWEEN
        self._role_changes += 1
        for scope in tuple(self._scopes):
            scope.cancel()

    async def wait_certain(self) -> None:
        """Wait until `is_certain`; requests a hello from the mongod after a pause."""
        while not self.is_certain:
            if self._is_doubted:
                await self._ask()
            else:
                await self._change.wait()

    async def present_reign(self) -> Reign | None:
        """Return the reign, None if the mongod is not primary; requests a hello from it after a pause.

        Until the daemon has stepped up, this is a reign that ends at the step-up.
        """
        while self._is_in_doubt():
            await self._ask()
        return self.reign()

    def reign(self) -> Reign | None:
        """Return the reign according to the last hello."""
        term = self._mirror.term
        return None if term is None else Reign(term, self._role_changes)

    async def run(self) -> None:
        """Check the clock until cancelled."""
        while True:
            await trio.sleep(_TICK_SECONDS)
            self._is_in_doubt()
            self._ticked = self._clock()

    def _is_in_doubt(self) -> bool:
        now = self._clock()
        if now - self._ticked > (SECONDARY_PAUSE_SECONDS_MAX if self._mirror.term is None else PAUSE_SECONDS_MAX):
            self._ticked = now
            self._pauses += 1
            self._is_doubted = True
        return self._is_doubted

    async def _ask(self) -> None:
        async with self._asking:
            if not self._is_doubted:  # an earlier caller has already asked
                return
            pauses = self._pauses
            hello = await self._ask_hello()
            if self._catch_up is not None and hello.get("secondary"):
                # A task of the term that has ended would check its term before each command, and wait here for itself.
                with self.while_role_lasts() as scope, working_for(None):
                    await self._catch_up()
                if scope.cancelled_caught:
                    return
            self._is_in_doubt()
            if self._pauses == pauses:
                self._mirror.meet(hello)
                self._is_doubted = False


logger = get_logger("daemon.sidecar.role_certainty")


class RoleHooks(Protocol):
    """A daemon's reactions to changes of its mongod's role."""

    async def on_step_up(self, term: int, nursery: trio.Nursery) -> None:
        """Recover the state persisted in the set, because mongod became primary.

        State from before must be discarded first, which is reported with `RoleCertainty.settle`.

        Args:
            nursery: runs work that ends with the term; at step-down it is cancelled together with this call.
        """

    def on_step_down(self) -> None:
        """Discard the term's state, because mongod is no longer primary or can't be reached; the term's work has ended.

        Until this is called, the term's nursery accepts tasks, and cancels them.
        """


async def follow_role(mirror: HelloMirror, certainty: RoleCertainty, hooks: RoleHooks) -> None:
    """Call the hooks at every change of role until cancelled."""
    while True:
        term = mirror.term
        if term is None:
            await mirror.wait_for_change()
            continue
        logger.info("Became primary", term=term)
        certainty.end_role()
        with working_for(certainty.reign()):
            await _run_term(mirror, certainty, hooks, term)
        certainty.settle(None)
        logger.info("Stepped down", term=term)


async def _run_term(mirror: HelloMirror, certainty: RoleCertainty, hooks: RoleHooks, term: int) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hooks.on_step_up, term, nursery)
        while mirror.term == term:
            await mirror.wait_for_change()
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await _wait_childless(nursery)
        # The nursery is still open, because requests may start work in it until the step-down hook ends the term for
        # them. Waiting requests are cancelled before that, because the hook releases critical sections, and a request
        # must not continue in the role that follows.
        certainty.end_role()
        hooks.on_step_down()


async def _wait_childless(nursery: trio.Nursery) -> None:
    """Wait until a nursery has no tasks, without a checkpoint after the last look."""
    exits = _TaskExits()
    trio.lowlevel.add_instrument(exits)
    try:
        while nursery.child_tasks:
            await exits.next()
    finally:
        trio.lowlevel.remove_instrument(exits)


class _TaskExits(trio.abc.Instrument):
    """Ends of tasks; a nursery does not report the end of its last task before it is closed."""

    def __init__(self) -> None:
        self._exit = trio.Event()

    def task_exited(self, task: trio.lowlevel.Task) -> None:
        """Record the exit; see `trio.abc.Instrument`."""
        self._exit.set()

    async def next(self) -> None:
        """Wait until another task has ended."""
        self._exit = trio.Event()
        await self._exit.wait()
