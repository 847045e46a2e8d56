"""The creations of indexes under way on a shard's primary, as drops and renames of their collections meet them.

They do not hold the lock of their collection, since a build may take hours, and a drop is to end it.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence, Set
from contextlib import asynccontextmanager

import trio

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


class IndexCreation:
    """One that is under way.

    Attributes:
        building: the names of the indexes that each shard lacked when it began.
        decided: it is known what it builds, or it has ended.
        is_aborted: a drop has found these indexes, so they have to be undone.
        ended: it has ended.
    """

    def __init__(self) -> None:
        self.building: Mapping[str, Set[str]] = {}
        self.decided = trio.Event()
        self.is_aborted = False
        self.ended = trio.Event()

    @property
    def names(self) -> frozenset[str]:
        """The names of all indexes that it builds somewhere."""
        return frozenset().union(*self.building.values())


class IndexCreations:
    """All of them, by namespace."""

    def __init__(self) -> None:
        self._running: dict[str, list[IndexCreation]] = {}
        self._closed: dict[str, trio.Event] = {}

    def of(self, namespace: str) -> Sequence[IndexCreation]:
        """Those that are under way for a collection."""
        return tuple(self._running.get(namespace, ()))

    @asynccontextmanager
    async def entered(self, namespace: str) -> AsyncIterator[IndexCreation]:
        """One is under way in the block, which is entered when none is kept out."""
        while namespace in self._closed:
            await self._closed[namespace].wait()
        creation, running = IndexCreation(), self._running.setdefault(namespace, [])
        running.append(creation)
        try:
            yield creation
        finally:
            running.remove(creation)
            if not running:
                del self._running[namespace]
            creation.decided.set()
            creation.ended.set()

    @asynccontextmanager
    async def kept_out(self, namespaces: Iterable[str], *, must_enter: bool) -> AsyncIterator[None]:
        """None is under way in the block, in which collections are renamed, or an index is changed.

        Args:
            namespaces: the collections, of which the caller holds the locks.
            must_enter: whether it waits for those that are under way, since a former primary has begun with the change.

        Raises:
            CommandError: BackgroundOperationInProgressForNamespace, one is under way.
        """
        names = sorted(set(namespaces))
        for name in names:
            if name in self._running and not must_enter:
                raise CommandError(
                    ErrorCode.BackgroundOperationInProgressForNamespace,
                    f"cannot perform operation: an index build is currently running for collection {name}",
                )
        over = trio.Event()
        self._closed |= dict.fromkeys(names, over)
        try:
            for creation in [creation for name in names for creation in self.of(name)]:
                await creation.ended.wait()
            yield
        finally:
            for name in names:
                del self._closed[name]
            over.set()
