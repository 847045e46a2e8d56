"""Counts of the operations that began in one period, so that their end can be awaited while others begin."""

from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from shardwright.shardd.orphans.ownership_filter import OwnershipFilter


class OperationGeneration:
    """The operations on one namespace between two calls of `NamespaceState.wait_earlier_operations`.

    Attributes:
        is_superseded: whether unanswered reads have to be repeated. The collection is being renamed, or a range is
            about to be received that they must not see but do not filter.
        hidden: the ranges about to be received.
    """

    __slots__ = ("_change", "_count", "_writers", "hidden", "is_superseded")

    def __init__(self) -> None:
        self.is_superseded = False
        self.hidden: tuple[OwnershipFilter, ...] = ()
        self._count = 0
        self._writers = 0
        self._change: trio.Event | None = None  # if it is awaited

    @property
    def is_over(self) -> bool:
        """Whether no operation of the generation is running."""
        return not self._count

    def enter(self, *, is_write: bool) -> None:
        """Count the start of an operation."""
        self._count += 1
        if is_write:
            self._writers += 1

    def exit(self, *, is_write: bool) -> None:
        """Count the end of an operation."""
        self._count -= 1
        if is_write:
            self._writers -= 1
        if self._change is not None and not (self._count and self._writers):
            self._change.set()
            self._change = None

    async def wait_over(self) -> None:
        """Return when no operation of the generation is running."""
        while self._count:
            await self._wait_change()

    async def wait_writes_over(self) -> None:
        """Return when no write of the generation is running."""
        while self._writers:
            await self._wait_change()

    async def _wait_change(self) -> None:
        if self._change is None:
            self._change = trio.Event()
        await self._change.wait()
