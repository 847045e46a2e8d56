"""One stream read by several readers at once, each of which gets all documents.

The next batch is read when all readers that are left want it, so that only one is held.
"""

from collections.abc import Sequence
from typing import Final

import trio

from shardwright.router.cursors.remote import RemoteCursor
from shardwright.router.joins.streams import DocumentStream
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


class Tee:
    """See the module. `pump` has to run as long as there are readers."""

    def __init__(self, source: DocumentStream, count: int) -> None:
        self._source = source
        self._batch: list[bytes] = []
        self._number = 0
        self._is_ended = False
        self._changed = trio.Condition()
        self._left = {TeeReader(self) for _ in range(count)}
        self.readers: Final = tuple(self._left)

    async def pump(self) -> None:
        """Read the source for the readers until none is left.

        Raises:
            CommandError: it could not be read; the readers fail.
        """
        try:
            while await self._is_wanted():
                batch = await self._source.next_batch()
                async with self._changed:
                    self._batch = batch
                    self._number += 1
                    self._changed.notify_all()
        finally:
            self._is_ended = True
            with trio.CancelScope(shield=True):
                async with self._changed:
                    self._changed.notify_all()

    async def leave(self, reader: "TeeReader") -> None:
        """Do not wait for a reader any longer."""
        async with self._changed:
            self._left.discard(reader)
            self._changed.notify_all()

    async def batch_after(self, reader: "TeeReader") -> list[bytes]:
        """The batch behind the one that a reader has got last.

        Raises:
            CommandError: QueryPlanKilled, it will not be read.
        """
        async with self._changed:
            reader.is_waiting = True
            self._changed.notify_all()
            while reader.number == self._number and not self._is_ended:
                await self._changed.wait()
            reader.is_waiting = False
            if reader.number == self._number:
                raise CommandError(ErrorCode.QueryPlanKilled, "The pipeline of a $facet has ended")
            reader.number = self._number
            return self._batch

    async def _is_wanted(self) -> bool:
        """Wait until all readers want the next batch; whether any is left."""
        async with self._changed:
            while not all(reader.is_waiting and reader.number == self._number for reader in self._left):
                await self._changed.wait()
            return bool(self._left)


class TeeReader:
    """See `streams.DocumentStream`.

    Attributes:
        number: of the batch that it has got last.
        is_waiting: whether it waits for the next one.
    """

    remotes: Sequence[RemoteCursor] = ()

    def __init__(self, tee: Tee) -> None:
        self._tee = tee
        self.number = 0
        self.is_waiting = False

    async def next_batch(self) -> list[bytes]:
        """See `streams.DocumentStream`."""
        return await self._tee.batch_after(self)
