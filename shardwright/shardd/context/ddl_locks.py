"""Exclusion of conflicting changes on a shard's primary: locks of namespaces and databases, and index creations.

`DDLLocks` serialise changes to the same namespace or database. They live in memory. After a failover, a coordinator
that held one takes it again at step-up.

Index creations in progress (`IndexCreations`) do not hold the lock of their collection or database, because a build may
take hours and a drop has to end it.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence, Set
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import trio

from shardwright.shardd.metadata.database_state import DatabaseState
from shardwright.shardd.metadata.namespace_state import StateTable
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

LOCK_SECONDS_MAX: Final = 300.0
"""Seconds that a new change waits for others before it fails with LockBusy, as in MongoDB."""


class DDLLocks:
    """Locks by name: a namespace or, for a change to a whole database, the database."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[trio.Lock, int]] = {}

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[None]:
        """Hold the lock of ``name``."""
        lock, users = self._locks.get(name, (trio.Lock(), 0))
        self._locks[name] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[name]
            if users == 1:
                del self._locks[name]
            else:
                self._locks[name] = (lock, users - 1)

    @asynccontextmanager
    async def hold_all(self, names: Iterable[str], seconds_max: float = LOCK_SECONDS_MAX) -> AsyncIterator[None]:
        """Hold the locks of all ``names``, or raise LockBusy if one of them was not free in time.

        They are acquired in the given order, which must be the same for all callers.
        """
        async with AsyncExitStack() as locks:
            with trio.move_on_after(seconds_max) as patience:
                for name in names:
                    await locks.enter_async_context(self.hold(name))
            if patience.cancelled_caught:
                raise CommandError(
                    ErrorCode.LockBusy, f"timed out waiting for another DDL operation on {', '.join(names)}"
                )
            yield

    @asynccontextmanager
    async def chunk_change(self, namespace: str) -> AsyncIterator[None]:
        """Hold the lock for splits, merges and moves of a collection's chunks, which is separate from its DDL lock."""
        async with self.hold(chunk_lock(namespace)):
            yield


def chunk_lock(namespace: str) -> str:
    """Return the name of the lock for changes to a collection's chunks."""
    return f"chunks of {namespace}"


class IndexCreation:
    """An index creation in progress.

    Attributes:
        building: the names of the indexes that each shard lacked when it began.
        decided: set once `building` is known, or the creation has ended.
        is_aborted: whether a drop has found these indexes, so that they have to be undone.
        ended: set once the creation has ended.
    """

    def __init__(self) -> None:
        self.building: Mapping[str, Set[str]] = {}
        self.decided = trio.Event()
        self.is_aborted = False
        self.ended = trio.Event()

    @property
    def names(self) -> frozenset[str]:
        """The names of all indexes that it builds on any shard."""
        return frozenset().union(*self.building.values())


class IndexCreations:
    """All index creations in progress, by namespace.

    Args:
        databases: the states of databases; a creation does not begin in the critical section of a ``movePrimary``.
    """

    def __init__(self, databases: StateTable[DatabaseState]) -> None:
        self._databases = databases
        self._running: dict[str, list[IndexCreation]] = {}
        self._closed: dict[str, trio.Event] = {}

    def of(self, namespace: str) -> Sequence[IndexCreation]:
        """Return the creations in progress on a collection."""
        return tuple(self._running.get(namespace, ()))

    def is_any_of_database(self, db: str) -> bool:
        """Whether a creation is in progress on a collection of a database."""
        return any(namespace.partition(".")[0] == db for namespace in self._running)

    async def wait_ended_of_database(self, db: str) -> None:
        """Return when no creation is in progress on the collections of a database."""
        while self.is_any_of_database(db):
            for namespace in [each for each in self._running if each.partition(".")[0] == db]:
                for creation in self.of(namespace):
                    await creation.ended.wait()

    @asynccontextmanager
    async def entered(self, namespace: str) -> AsyncIterator[IndexCreation]:
        """Register a running creation for the block, after waiting for changes that exclude it."""
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
        """Exclude creations for the block, which renames collections or changes an index.

        Args:
            namespaces: the collections; the caller holds their locks.
            must_enter: whether to wait for running creations instead of failing, because an earlier term began the
                change.

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
