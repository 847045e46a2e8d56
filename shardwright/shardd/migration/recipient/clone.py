"""The bulk of a migration: documents pulled from the donor and inserted unchanged, by several writers.

A batch is fetched while the previous ones are written. It is cut into pieces; each piece is one transaction of a
reserved session. Documents are cut out by their length prefixes and never decoded. Pieces may be committed out of
order, so a checkpoint covers only the pieces before the first missing one.

While clients keep either shard busy, a writer rests after each piece for a multiple of the time that the piece took. A
clone otherwise uses all of the machine, and costs the clients most of their throughput.
"""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Final, Protocol, TypeAlias

import trio

from shardwright.shardd.local_mongod.reserved_sessions import ReservedSessions
from shardwright.shardd.migration.recipient.donor_link import CloneBatch
from shardwright.shardd.migration.recipient.range_writer import RangeWriter
from shardwright.shardd.migration.throttling import ClientLoad
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.errors import BackendError, CommandError, RemoteProtocolError
from shardwright.wire.rawbson import array_documents

Work: TypeAlias = Callable[[], Awaitable[None]]


async def run_together(*works: Work, meanwhile: Work | None = None) -> None:
    """Run all ``works`` concurrently until they have ended.

    If one raises CommandError, BackendError or RemoteProtocolError, the others are cancelled and its error is raised.

    Args:
        meanwhile: runs alongside them and is cancelled when they have ended.
    """
    failures: list[Exception] = []

    async def run(work: Work) -> None:
        try:
            await work()
        except (CommandError, BackendError, RemoteProtocolError) as error:
            failures.append(error)
            everything.cancel_scope.cancel()

    async with trio.open_nursery() as everything:
        if meanwhile is not None:
            everything.start_soon(run, meanwhile)
        async with trio.open_nursery() as nursery:
            for work in works:
                nursery.start_soon(run, work)
        everything.cancel_scope.cancel()
    for failure in failures:
        raise failure


WRITERS: Final = 2
"""Number of concurrent transactions. On two cores a third one gains nothing."""

PIECE_DOCUMENTS_MAX: Final = 1_000
"""Largest number of documents in a transaction: beyond it, mongod needs more time for each document."""

PIECE_BYTES_MAX: Final = 4 * 1024 * 1024

RESTS: Final = 3
"""Length of a writer's rest, as a multiple of the time that the piece took.

Point finds from four clients on two cores lose 15 to 30 % of their throughput with these rests, and 70 % without.
"""

REST_SECONDS_MAX: Final = 0.5
"""The longest rest: a piece that took very long was waiting for something other than the machine."""

_PIECES_WAITING_MAX: Final = 4
"""Together with the batch being cut and the one being fetched, this bounds the memory used by a clone."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The documents that one transaction inserts.

    Attributes:
        number: the position of the piece in the clone, from 0.
        documents: raw documents.
        size: their size in bytes.
    """

    number: int
    documents: list[bytes]
    size: int


class ClonedPrefix:
    """The part of the clone, from its beginning, that has been committed here without gaps.

    Args:
        documents: number of documents cloned by earlier attempts.
        size: their size in bytes.

    Attributes:
        documents: number of documents in the prefix, including earlier attempts'.
        size: their size in bytes.
    """

    def __init__(self, documents: int = 0, size: int = 0) -> None:
        self.documents = documents
        self.size = size
        self._last: Piece | None = None
        self._next = 0
        self._ahead: dict[int, Piece] = {}

    def finish(self, piece: Piece) -> None:
        """Record that a piece has been committed."""
        self._ahead[piece.number] = piece
        while self._next in self._ahead:
            self._last = self._ahead.pop(self._next)
            self.documents += len(self._last.documents)
            self.size += self._last.size
            self._next += 1

    def checkpoint(self, pattern: ShardKeyPattern) -> tuple[bytes, int, int] | None:
        """Return a shard key below which the clone is complete, and the documents and bytes below it; None at first.

        Documents with exactly this key are not counted: there may be more of them to come.
        """
        if self._last is None:
            return None
        documents, size = self.documents, self.size
        key = pattern.key_bytes_of_document(self._last.documents[-1])
        for document in reversed(self._last.documents):
            if pattern.key_bytes_of_document(document) != key:
                break
            documents -= 1
            size -= len(document)
        return pattern.extract_from_document(self._last.documents[-1]), documents, size


class CloneCounts(Protocol):
    """Counts cloned documents.

    Attributes:
        cloned: number of cloned documents.
    """

    cloned: int
    cloned_bytes: int


class Cloner:
    """The clone of one attempt.

    Args:
        fetch: fetches the batch with a number from the donor.
        prefix: records the committed pieces.
        load: the load of client operations on this shard.
        writers: number of concurrent writers; with one, the documents keep their order.
    """

    def __init__(
        self,
        fetch: Callable[[int], Awaitable[CloneBatch]],
        sessions: ReservedSessions,
        writer: RangeWriter,
        status: CloneCounts,
        prefix: ClonedPrefix,
        load: ClientLoad,
        *,
        writers: int = WRITERS,
    ) -> None:
        self._writers = writers
        self._load = load
        self._is_donor_busy = False
        self._fetch_batch = fetch
        self._sessions = sessions
        self._writer = writer
        self._status = status
        self._prefix = prefix

    async def run(self, first: CloneBatch) -> None:
        """Clone the rest of the range.

        Args:
            first: the first batch, which has been fetched already.

        Raises:
            CommandError: the donor refused or could not be reached; DuplicateKey, see `RangeWriter.insert`.
        """
        batches, fetched = trio.open_memory_channel[CloneBatch](0)
        pieces, waiting = trio.open_memory_channel[Piece](_PIECES_WAITING_MAX)
        writers = [waiting.clone() for _ in range(self._writers)]
        waiting.close()
        await run_together(
            lambda: self._fetch(first, batches),
            lambda: self._cut(fetched, pieces),
            *(lambda own=own: self._write(own) for own in writers),
        )

    async def _fetch(self, batch: CloneBatch, batches: trio.MemorySendChannel[CloneBatch]) -> None:
        async with batches:
            for number in count(1):
                if batch.is_last:
                    return
                self._is_donor_busy = batch.is_donor_busy
                await batches.send(batch)
                batch = await self._fetch_batch(number)

    async def _cut(self, fetched: trio.MemoryReceiveChannel[CloneBatch], pieces: trio.MemorySendChannel[Piece]) -> None:
        numbers = count()
        async with fetched, pieces:
            async for batch in fetched:
                for documents, size in cut(array_documents(batch.reply, batch.objects)):
                    await pieces.send(Piece(next(numbers), documents, size))

    async def _write(self, waiting: trio.MemoryReceiveChannel[Piece]) -> None:
        async with waiting, self._sessions.session() as session:
            async for piece in waiting:
                began = trio.current_time()
                inserted = await self._writer.insert(session, piece.documents)
                took = trio.current_time() - began
                is_whole = len(inserted) == len(piece.documents)
                self._status.cloned += len(inserted)
                self._status.cloned_bytes += piece.size if is_whole else sum(map(len, inserted))
                self._prefix.finish(piece)
                if self._is_donor_busy or self._load.is_heavy:
                    await trio.sleep(min(RESTS * took, REST_SECONDS_MAX))


def cut(documents: list[bytes]) -> Iterator[tuple[list[bytes], int]]:
    """Split documents into runs of a good size for one transaction, each with its size in bytes."""
    begin, size = 0, 0
    for position, document in enumerate(documents):
        if position - begin >= PIECE_DOCUMENTS_MAX or (size and size + len(document) > PIECE_BYTES_MAX):
            yield documents[begin:position], size
            begin, size = position, 0
        size += len(document)
    if documents:
        yield documents[begin:], size
