"""The components of a term as primary, listed so that each begins after its dependencies."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

import trio

from shardwright.daemon.backoff import Backoff, until_done
from shardwright.daemon.sidecar.term_fence import TermFence
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("shardd.terms")


class TermComponent(Protocol):
    """A component that runs from step-up to step-down."""

    async def begin_term(self, term: int, nursery: trio.Nursery) -> None:
        """Take over from the previous primary. Called again in the same term only after a failure.

        Args:
            nursery: the term's nursery, which is cancelled at step-down.

        Raises:
            CommandError: mongod refuses.
            BackendError: mongod does not answer.
        """

    def end_term(self) -> None:
        """End the term, after its nursery has been cancelled. Also called if `begin_term` was never reached."""


class TermTask:
    """A task that runs during each term."""

    def __init__(self, run: Callable[[], Awaitable[None]]) -> None:
        self._run = run

    async def begin_term(self, term: int, nursery: trio.Nursery) -> None:
        """Start the task."""
        nursery.start_soon(self._run)

    def end_term(self) -> None:
        """Do nothing: the nursery has cancelled the task."""


class TermRecovery:
    """A step at the beginning of each term that needs no end."""

    def __init__(self, recover: Callable[[int], Awaitable[None]]) -> None:
        self._recover = recover

    async def begin_term(self, term: int, nursery: trio.Nursery) -> None:
        """Run the step and propagate its errors."""
        await self._recover(term)

    def end_term(self) -> None:
        """Do nothing."""


class FencedWrites:
    """Numbering of each term's writes to ``config``, so that mongod refuses them in a later term."""

    def __init__(self, fence: TermFence) -> None:
        self._fence = fence

    async def begin_term(self, term: int, nursery: trio.Nursery) -> None:
        """Make mongod refuse writes of earlier terms; errors as for `TermFence.begin`."""
        await self._fence.begin(term)
        nursery.start_soon(self._fence.keep)

    def end_term(self) -> None:
        """Hold back writes until the next term begins."""
        self._fence.end()


class Terms:
    """The terms of a shard daemon, as `RoleHooks`. Components begin in the given order and end in reverse."""

    def __init__(self, context: ShardContext, components: Sequence[TermComponent]) -> None:
        self._context = context
        self._components = components

    async def on_step_up(self, term: int, nursery: trio.Nursery) -> None:
        """Begin a term from the persisted state alone, and resume the unfinished work of former primaries."""
        self._context.forget_metadata()
        self._context.sidecar.certainty.settle(term)
        await self._until_done(term, self._context.wait_identified)
        for component in self._components:
            await self._until_done(term, partial(component.begin_term, term, nursery))

    def on_step_down(self) -> None:
        """End the term and clear the filtering metadata, which the next primary may change."""
        for component in reversed(self._components):
            component.end_term()
        self._context.forget_metadata()

    async def _until_done(self, term: int, step: Callable[[], Awaitable[None]]) -> None:
        """Retry a step until it succeeds or the term ends."""
        await until_done(step, Backoff(first_seconds=0.2, seconds_max=1.0), partial(_log_failure, term))


def _log_failure(term: int, error: BackendError | CommandError, retry_seconds: float) -> None:
    logger.warning(
        "Could not recover the operations of earlier terms",
        term=term,
        error=str(error),
        retry_seconds=round(retry_seconds, 3),
    )
