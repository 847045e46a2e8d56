"""Locks that serialise changes to the same namespace or database on a shard's primary.

They live in memory. After a failover, a coordinator that held one takes it again at step-up.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


class DDLLocks:
    """A lock for each name in use: a namespace or, for a change to a whole database, the database."""

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
    async def chunk_change(self, namespace: str) -> AsyncIterator[None]:
        """Hold the lock for splits, merges and moves of a collection's chunks, which is not the one for its DDL."""
        async with self.hold(chunk_lock(namespace)):
            yield


def chunk_lock(namespace: str) -> str:
    """The name of the lock for changes of a collection's chunks."""
    return f"chunks of {namespace}"
