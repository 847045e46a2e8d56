"""The cursors that clients are reading through this daemon at the moment.

A listing of mongod's cursors is not made at one instant: it shows first those in use, then the idle ones. One that
begins to be used between the two, or has only just begun, is in neither part. So where no cursor may be missed, new
``getMore`` commands are held back during the listing, and those under way have to be found in it (`OpenCursors`).
"""

from collections.abc import AsyncIterator, Iterator, Set
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import trio

SETTLE_SECONDS_MAX: Final = 0.02
"""How long a listing waits for batches under way. Those that take longer are shown as being in use."""


class CursorsInUse:
    """The cursors from which a batch is being read, by the raw bytes of their ids.

    Attributes:
        is_held: whether new ``getMore`` commands have to `wait_released`.
    """

    def __init__(self) -> None:
        self.is_held = False
        self._readers: dict[bytes, int] = {}
        self._unused = trio.Event()
        self._released = trio.Event()
        self._turn = trio.Lock()
        self._noting: list[set[bytes]] = []

    def __contains__(self, cursor_id: bytes) -> bool:
        return cursor_id in self._readers

    def enter(self, cursor_id: bytes) -> None:
        """Note that a batch of a cursor is being read; not while `is_held`."""
        self._readers[cursor_id] = self._readers.get(cursor_id, 0) + 1

    def exit(self, cursor_id: bytes) -> None:
        """Note that the batch has been read."""
        for noted in self._noting:
            noted.add(cursor_id)
        others = self._readers.pop(cursor_id) - 1
        if others:
            self._readers[cursor_id] = others
        elif not self._readers:
            self._unused.set()

    async def wait_released(self) -> None:
        """Return when a ``getMore`` may begin."""
        while self.is_held:
            await self._released.wait()

    @contextmanager
    def noting_batches(self) -> Iterator[Set[bytes]]:
        """Collect, during the block, the ids of cursors from which a batch has been read."""
        noted: set[bytes] = set()
        self._noting.append(noted)
        try:
            yield noted
        finally:
            self._noting = [each for each in self._noting if each is not noted]

    @asynccontextmanager
    async def held(self) -> AsyncIterator[Set[int]]:
        """Hold new ``getMore`` commands back during the block; yields the ids of those in use nevertheless."""
        async with self._turn:
            self.is_held, self._released, self._unused = True, trio.Event(), trio.Event()
            try:
                if self._readers:
                    with trio.move_on_after(SETTLE_SECONDS_MAX):
                        await self._unused.wait()
                yield {int.from_bytes(each, "little", signed=True) for each in self._readers}
            finally:
                self.is_held = False
                self._released.set()
                # Those that were held back begin before the next block can hold them again.
                await trio.lowlevel.cancel_shielded_checkpoint()
