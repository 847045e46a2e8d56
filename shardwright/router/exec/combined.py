"""Stages over other stages: concatenated, numbered, read in batches, or read by several readers.

Each reader of a `Tee` receives all documents. The tee reads the next batch once all remaining readers have requested
it, so it holds only one batch.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio
from bson.timestamp import Timestamp

from shardwright.router.exec.remote import RemoteCursor
from shardwright.router.exec.stage import GetMore, Stage, held_by, remotes_of
from shardwright.router.reads.result_merger import FIRST_BATCH_DOCUMENTS, Batch, held_bytes
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


class UnionStage(Stage):
    """The documents of two stages; the second is opened when the first has ended."""

    def __init__(self, first: Stage, open_second: Callable[[], Awaitable[Stage]]) -> None:
        self._first = first
        self._second: Stage | None = None
        self._open_second = open_second

    @property
    def remotes(self) -> Sequence[RemoteCursor]:
        """See `Stage`."""
        return remotes_of(self._first, self._second)

    @property
    def held_bytes(self) -> int:
        """See `Stage`."""
        return held_by(self._first, self._second)

    async def next_batch(self, get_more: GetMore) -> list[bytes]:
        """See `Stage`."""
        if self._second is None:
            documents = await self._first.next_batch(get_more)
            if documents:
                return documents
            self._second = await self._open_second()
        return await self._second.next_batch(get_more)


class PrefetchedStage(Stage):
    """The documents of a stage, beginning with some that were read in advance."""

    def __init__(self, documents: list[bytes], rest: Stage) -> None:
        self._documents = documents
        self._rest = rest

    @property
    def remotes(self) -> Sequence[RemoteCursor]:
        """See `Stage`."""
        return self._rest.remotes

    @property
    def held_bytes(self) -> int:
        """See `Stage`."""
        return held_bytes(self._documents) + self._rest.held_bytes

    async def next_batch(self, get_more: GetMore) -> list[bytes]:
        """See `Stage`."""
        documents, self._documents = self._documents, []
        return documents or await self._rest.next_batch(get_more)


class RowStage(Stage):
    """The documents of another stage, each wrapped in a row."""

    def __init__(
        self,
        documents: Stage,
        row: Callable[[bytes, int], bytes],
        *,
        if_none: bytes | None = None,
        bytes_max: int | None = None,
        excess: CommandError | None = None,
    ) -> None:
        """Prepare the stage.

        Args:
            row: wraps a document, given its number.
            if_none: the only row if there are no documents; None for no row.
            bytes_max: the maximum total size of the documents, None for no limit.
            excess: the error if they are larger.
        """
        self._documents = documents
        self._row = row
        self._if_none = if_none
        self._bytes_left = bytes_max
        self._excess = excess
        self._count = 0

    @property
    def remotes(self) -> Sequence[RemoteCursor]:
        """See `Stage`."""
        return self._documents.remotes

    @property
    def held_bytes(self) -> int:
        """See `Stage`."""
        return self._documents.held_bytes

    async def next_batch(self, get_more: GetMore) -> list[bytes]:
        """See `Stage`."""
        batch = await self._documents.next_batch(get_more)
        if not batch and not self._count and self._if_none is not None:
            self._count = 1
            return [self._if_none]
        rows = [self._row(document, number) for number, document in enumerate(batch, self._count)]
        self._count += len(rows)
        if self._bytes_left is not None:
            self._bytes_left -= sum(map(len, batch))
            if self._bytes_left < 0:
                assert self._excess is not None
                raise self._excess
        return rows


class BoundedStage(Stage):
    """The documents of another stage in batches of the requested size.

    Args:
        reading: the request by which the router reads the other stage, in place of the client's.
        errors: changes the error of the first batch, which is the reply to the command itself.
        first_size: the number of documents in a first batch without a requested size, None for the available ones.
        at_cluster_time: the time of the documents' snapshot; None outside snapshots.
    """

    def __init__(
        self,
        stage: Stage,
        reading: GetMore,
        errors: Callable[[CommandError], None] | None = None,
        *,
        first_size: int | None = FIRST_BATCH_DOCUMENTS,
        at_cluster_time: Timestamp | None = None,
    ) -> None:
        self._stage = stage
        self._reading = reading
        self._errors = errors
        self._first_size = first_size
        self._pending: deque[bytes] = deque()
        self._pending_bytes = 0
        self._is_begun = self._has_ended = False
        self.at_cluster_time = at_cluster_time

    @property
    def remotes(self) -> Sequence[RemoteCursor]:
        """See `Stage`."""
        return self._stage.remotes

    @property
    def is_exhausted(self) -> bool:
        """See `Stage`."""
        return self._has_ended and not self._pending

    @property
    def held_bytes(self) -> int:
        """See `Stage`."""
        return self._pending_bytes + self._stage.held_bytes

    async def next_batch(self, get_more: GetMore) -> list[bytes]:
        """See `Stage`. Without a batch size, batches after the first one have the available documents."""
        if self._is_begun:
            return await self._filled(Batch(get_more.batch_size))
        self._is_begun = True
        try:
            size = get_more.batch_size
            return await self._filled(Batch(self._first_size if size is None else size))
        except CommandError as error:
            if self._errors is not None:
                self._errors(error)
            raise

    async def _filled(self, batch: Batch) -> list[bytes]:
        while True:
            while self._pending and batch.add(self._pending[0]):
                self._pending_bytes -= len(self._pending.popleft())
            has_enough = batch.is_full or (batch.documents_max is None and batch.documents)
            if self._pending or self._has_ended or has_enough:
                return batch.documents
            documents = await self._stage.next_batch(self._reading)
            self._has_ended = not documents
            self._pending.extend(documents)
            self._pending_bytes += sum(map(len, documents))


class Tee:
    """Distributor of a stage's documents to several readers. `pump` must run while there are readers."""

    def __init__(self, source: Stage, count: int) -> None:
        self._source = source
        self._batch: list[bytes] = []
        self._number = 0
        self._is_ended = False
        self._changed = trio.Condition()
        self._left = {TeeReader(self) for _ in range(count)}
        self.readers: Final = tuple(self._left)

    async def pump(self, get_more: GetMore) -> None:
        """Read the source for the readers until none is left.

        Raises:
            CommandError: it could not be read; the readers fail.
        """
        try:
            while await self._is_wanted():
                batch = await self._source.next_batch(get_more)
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
        """Remove a reader."""
        async with self._changed:
            self._left.discard(reader)
            self._changed.notify_all()

    async def batch_after(self, reader: "TeeReader") -> list[bytes]:
        """Return the batch after a reader's last one.

        Raises:
            CommandError: QueryPlanKilled, the tee has ended.
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
        """Wait until all readers want the next batch; return whether any reader is left."""
        async with self._changed:
            while not all(reader.is_waiting and reader.number == self._number for reader in self._left):
                await self._changed.wait()
            return bool(self._left)


class TeeReader(Stage):
    """One reader of a tee.

    Attributes:
        number: the number of its last batch.
        is_waiting: whether it waits for the next one.
    """

    def __init__(self, tee: Tee) -> None:
        self._tee = tee
        self.number = 0
        self.is_waiting = False

    async def next_batch(self, get_more: GetMore) -> list[bytes]:
        """See `Stage`."""
        return await self._tee.batch_after(self)
