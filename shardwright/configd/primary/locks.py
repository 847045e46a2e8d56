"""Named locks, which make conflicting operations of the primary wait for each other.

They are kept in memory: only the primary writes, and transactions protect the catalog even from a primary that has not
yet noticed that it was deposed. The locks prevent write conflicts between operations.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import trio

# The list of shards has several locks, since some of their holders wait for shards, and others with a critical section.

ADDING_SHARDS: Final = "adding shards"
"""Held while a shard is added, and by the phases of a write block, which shards may hold up for long."""

CLUSTER_SETTINGS: Final = "cluster settings"
"""Held by what sets something on all shards, which a shard that is added then has to get too."""

REMOVING_SHARDS: Final = "removing shards"
"""Held by the removal of a shard, and by what gives a shard something for which it must not be removed."""


class NamedLocks:
    """One lock for each name in use, granted in order of request."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    @asynccontextmanager
    async def hold(self, *names: str) -> AsyncIterator[None]:
        """Hold the locks of all ``names``, which are always acquired in the same order."""
        async with AsyncExitStack() as stack:
            for name in sorted(set(names)):
                await stack.enter_async_context(self._hold_one(name))
            yield

    @asynccontextmanager
    async def _hold_one(self, name: str) -> AsyncIterator[None]:
        entry = self._entries.setdefault(name, _Entry())
        entry.users += 1
        try:
            async with entry.lock:
                yield
        finally:
            entry.users -= 1
            if not entry.users:
                del self._entries[name]

    @property
    def names_in_use(self) -> frozenset[str]:
        """The names whose locks are held or waited for."""
        return frozenset(self._entries)


class _Entry:
    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = trio.Lock()
        self.users = 0
