"""Running a daemon's work as primary from step-up to step-down of the local mongod.

A term is a period in which mongod is primary without interruption. The work of a term runs in a nursery that is
cancelled when the term ends, so nothing that a former primary was doing survives into the next term.
"""

from typing import Protocol

import trio

from shardwright.daemon.sidecar.hello_mirror import HelloMirror
from shardwright.daemon.sidecar.role_certainty import RoleCertainty
from shardwright.daemon.sidecar.term_scope import working_for
from shardwright.wire.logger import get_logger

logger = get_logger("daemon.sidecar.terms")


class RoleHooks(Protocol):
    """What a daemon does when its mongod's role changes."""

    async def on_step_up(self, term: int, nursery: trio.Nursery) -> None:
        """Mongod became primary: recover the state persisted in its set.

        State from before must be discarded first, which is reported with `RoleCertainty.settle`.

        Args:
            term: the election's number.
            nursery: runs work that ends with the term; at step-down it is cancelled together with this call.
        """

    def on_step_down(self) -> None:
        """Mongod is no longer primary or can't be reached; the work of the term has ended.

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
        with working_for(term):
            await _run_term(mirror, hooks, term)
        certainty.end_role()
        certainty.settle(None)
        logger.info("Stepped down", term=term)


async def _run_term(mirror: HelloMirror, hooks: RoleHooks, term: int) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hooks.on_step_up, term, nursery)
        while mirror.term == term:
            await mirror.wait_for_change()
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await _wait_childless(nursery)
        # The nursery is still open, since requests may start work in it until they learn here that the term is over.
        hooks.on_step_down()


async def _wait_childless(nursery: trio.Nursery) -> None:
    """Return when a nursery has no tasks, without a checkpoint after the last look."""
    exits = _TaskExits()
    trio.lowlevel.add_instrument(exits)
    try:
        while nursery.child_tasks:
            await exits.next()
    finally:
        trio.lowlevel.remove_instrument(exits)


class _TaskExits(trio.abc.Instrument):
    """Reports that some task has ended; a nursery does not report that of its last one before it is closed."""

    def __init__(self) -> None:
        self._exit = trio.Event()

    def task_exited(self, task: trio.lowlevel.Task) -> None:
        """See `trio.abc.Instrument`."""
        self._exit.set()

    async def next(self) -> None:
        """Return when another task has ended."""
        self._exit = trio.Event()
        await self._exit.wait()
