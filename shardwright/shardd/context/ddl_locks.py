"""Locks that serialise changes to the same namespace or database on a shard's primary.

They live in memory. After a failover, a coordinator that held one takes it again at step-up.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import trio

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
