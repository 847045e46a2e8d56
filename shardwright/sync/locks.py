"""A lock for each name."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from weakref import WeakValueDictionary


class Locks:
    """Locks that exist while they are held or awaited."""

    def __init__(self) -> None:
        self._all: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def held(self, *names: str) -> AsyncIterator[None]:
        """Hold the locks of some names during the block. A fixed order prevents deadlocks."""
        async with AsyncExitStack() as held:
            for each in sorted({*names}):
                await held.enter_async_context(self._all.setdefault(each, asyncio.Lock()))
            yield
