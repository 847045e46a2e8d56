"""The shards that take part in a move of the balancer: each of them in at most one at a time."""

from collections.abc import Iterator
from contextlib import contextmanager

import trio


class BusyShards:
    """The shards of one term."""

    def __init__(self) -> None:
        self._busy: set[str] = set()
        self._freed = trio.Event()

    def __contains__(self, shard: str) -> bool:
        return shard in self._busy

    @contextmanager
    def taking(self, *shards: str) -> Iterator[bool]:
        """Take shards for the block if all of them are free; yields whether they were."""
        if not self._busy.isdisjoint(shards):
            yield False
            return
        self._busy.update(shards)
        try:
            yield True
        finally:
            self._busy.difference_update(shards)
            self._freed.set()
            self._freed = trio.Event()

    async def wait_free(self, *shards: str) -> None:
        """Return when all of the shards are free, which they may not be any more after the next checkpoint."""
        while not self._busy.isdisjoint(shards):
            await self._freed.wait()
