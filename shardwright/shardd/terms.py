"""What begins and ends with a term: one list of components, each after those that it works with."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, Protocol

import trio

from shardwright.daemon.sidecar.term_fence import TermFence
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("shardd.terms")

_RETRY_SECONDS: Final = 0.2


class TermComponent(Protocol):
    """What works from step-up to step-down."""

    async def begin_term(self, term: int, nursery: trio.Nursery) -> None:
        """Take over from the last primary. Called again if it fails, and not again in this term if it does not.

        Args:
            term: the election's number.
            nursery: of the term, which is cancelled at step-down.

        Raises:
            CommandError: mongod refuses.
            BackendError: mongod does not answer.
        """

    def end_term(self) -> None:
        """The nursery of the term has been cancelled. Also called in terms that did not come to `begin_term`."""


class TermTask:
    """A task that runs during each term.

    Args:
        run: the task.
    """

    def __init__(self, run: Callable[[], Awaitable[None]]) -> None:
        self._run = run

    async def begin_term(self, term: int, nursery: trio.Nursery) -> None:
        """Start it."""
        nursery.start_soon(self._run)

    def end_term(self) -> None:
        """It has been cancelled with its nursery."""


class TermRecovery:
    """A step at the beginning of each term, of which nothing is left at its end.

    Args:
        recover: the step.
    """

    def __init__(self, recover: Callable[[int], Awaitable[None]]) -> None:
        self._recover = recover

    async def begin_term(self, term: int, nursery: trio.Nursery) -> None:
        """Do it; errors as those of the step."""
        await self._recover(term)

    def end_term(self) -> None:
        """There is nothing to end."""


class FencedWrites:
    """The writes of each term to ``config``, which mongod refuses in a later one.

    Args:
        fence: by which they are numbered.
    """

    def __init__(self, fence: TermFence) -> None:
        self._fence = fence

    async def begin_term(self, term: int, nursery: trio.Nursery) -> None:
        """Have mongod refuse what was sent in earlier terms; errors as `TermFence.begin`."""
        await self._fence.begin(term)
        nursery.start_soon(self._fence.keep)

    def end_term(self) -> None:
        """Writes of the next term wait until that has begun."""
        self._fence.end()


class Terms:
    """Begins and ends the terms of a shard daemon, as `RoleHooks`.

    Args:
        context: this shard daemon's context.
        components: in the order in which they begin; they end in the opposite one.
    """

    def __init__(self, context: ShardContext, components: Sequence[TermComponent]) -> None:
        self._context = context
        self._components = components

    async def on_step_up(self, term: int, nursery: trio.Nursery) -> None:
        """Begin as primary with nothing but what is persisted, and finish what a former primary has begun."""
        self._context.forget_metadata()
        self._context.sidecar.certainty.settle(term)
        await self._until_done(term, self._context.wait_identified)
        for component in self._components:
            await self._until_done(term, partial(component.begin_term, term, nursery))

    def on_step_down(self) -> None:
        """What this primary knew is for its successor to say now."""
        for component in reversed(self._components):
            component.end_term()
        self._context.forget_metadata()

    async def _until_done(self, term: int, step: Callable[[], Awaitable[None]]) -> None:
        """Try a step until it is done, or the term is over."""
        while True:
            try:
                await step()
            except (BackendError, CommandError) as error:
                logger.warning("Could not recover the operations of earlier terms", term=term, error=str(error))
                await trio.sleep(_RETRY_SECONDS)
            else:
                return
