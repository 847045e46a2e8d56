"""The creations of indexes in progress on a shard's primary, and the changes that must not run beside them.

They hold no lock of their collection or database, since a build may take hours, and a drop is to end it.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence, Set
from contextlib import asynccontextmanager

import trio

from shardwright.shardd.metadata.database_state import DatabaseState
from shardwright.shardd.metadata.namespace_state import StateTable
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


class IndexCreation:
    """A creation of indexes in progress.

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
    """All of them, by namespace.

    Args:
        databases: the states of databases; none begins in the critical section of its database, whose primary shard
            changes.
    """

    def __init__(self, databases: StateTable[DatabaseState]) -> None:
        self._databases = databases
        self._running: dict[str, list[IndexCreation]] = {}
        self._closed: dict[str, trio.Event] = {}

    def of(self, namespace: str) -> Sequence[IndexCreation]:
        """The creations in progress on a collection."""
        return tuple(self._running.get(namespace, ()))

    def is_any_of_database(self, db: str) -> bool:
        """Whether one is in progress for a collection of a database."""
        return any(namespace.partition(".")[0] == db for namespace in self._running)

    async def wait_ended_of_database(self, db: str) -> None:
        """Return when none is in progress for the collections of a database."""
        while self.is_any_of_database(db):
            for namespace in [each for each in self._running if each.partition(".")[0] == db]:
                for creation in self.of(namespace):
                    await creation.ended.wait()

    @asynccontextmanager
    async def entered(self, namespace: str) -> AsyncIterator[IndexCreation]:
        """Count a creation as running during the block, which begins when no change excludes it."""
        while (wait_open := self._wait_open(namespace)) is not None:
            await wait_open()
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

    def _wait_open(self, namespace: str) -> Callable[[], Awaitable[None]] | None:
        closed = self._closed.get(namespace)
        if closed is not None:
            return closed.wait
        database = self._databases.find(namespace.partition(".")[0])
        section = None if database is None else database.critical_section
        return None if section is None else section.wait_released

    @asynccontextmanager
    async def kept_out(self, namespaces: Iterable[str], *, must_enter: bool) -> AsyncIterator[None]:
        """Exclude creations during the block, in which collections are renamed, or an index is changed.

        Args:
            namespaces: the collections; the caller holds their locks.
            must_enter: whether to wait for running creations, since a former primary has begun with the change.

        Raises:
            CommandError: BackgroundOperationInProgressForNamespace, a creation is running.
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
