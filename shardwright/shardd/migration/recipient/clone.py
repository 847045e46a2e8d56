"""The bulk of a migration: documents pulled from the donor and written here, as they are, by several writers.

A batch is fetched while those before it are written. It is cut into pieces, each of which is one transaction of a
reserved session; documents are cut out by their length prefixes and never decoded. Pieces may be committed in another
order than they came in, so a checkpoint covers those before the first one that is missing.

While clients keep either shard busy, a writer rests after each piece for a multiple of what the piece took: a clone
otherwise takes all that there is of a machine, and costs them most of their throughput.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Final

import trio

from shardwright.shardd.local_mongod.reserved_sessions import ReservedSessions
from shardwright.shardd.migration.client_load import ClientLoad
from shardwright.shardd.migration.recipient.donor_link import CloneBatch, DonorLink
from shardwright.shardd.migration.recipient.range_writer import RangeWriter
from shardwright.shardd.migration.recipient.status import ReceiveStatus
from shardwright.shardd.migration.recipient.together import run_together
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.rawbson import array_documents

WRITERS: Final = 2
"""How many transactions are under way at once. On two cores a third one gains nothing."""

PIECE_DOCUMENTS_MAX: Final = 1_000
"""How many documents a transaction inserts: with more it costs mongod more time for each."""

PIECE_BYTES_MAX: Final = 4 * 1024 * 1024

RESTS: Final = 3
"""How many times as long as a piece took a writer rests after it, when it rests. Point finds from four clients on two
cores lose 15 to 30 % then, and 70 % if it never does."""

REST_SECONDS_MAX: Final = 0.5
"""A piece that took longer has been waiting for something else than the machine."""

_PIECES_WAITING_MAX: Final = 4
"""With a batch that is being cut and one that is being fetched, this bounds the memory that a clone takes."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What one transaction inserts.

    Attributes:
        number: of the piece, in the order of the clone.
        documents: raw documents.
        size: bytes of them.
    """

    number: int
    documents: list[bytes]
    size: int


class ClonedPrefix:
    """Up to where everything that came from the donor has been committed here.

    Args:
        documents: how many documents had been cloned before.
        size: bytes of them.

    Attributes:
        documents: how many have been now, in the prefix.
        size: bytes of them.
    """

    def __init__(self, documents: int = 0, size: int = 0) -> None:
        self.documents = documents
        self.size = size
        self._last: Piece | None = None
        self._next = 0
        self._ahead: dict[int, Piece] = {}

    def finish(self, piece: Piece) -> None:
        """A piece has been committed."""
        self._ahead[piece.number] = piece
        while self._next in self._ahead:
            self._last = self._ahead.pop(self._next)
            self.documents += len(self._last.documents)
            self.size += self._last.size
            self._next += 1

    def checkpoint(self, pattern: ShardKeyPattern) -> tuple[bytes, int, int] | None:
        """A shard key below which everything is here, with the number of documents and bytes that are; None at first.

        Documents with just this key do not count: there may be more of them to come.
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


class Cloner:
    """The clone of one attempt.

    Args:
        link: the donor.
        sessions: in which documents are written.
        writer: writes them.
        status: counts what has been.
        prefix: learns what has been committed.
        load: what clients ask of this shard.
    """

    def __init__(
        self,
        link: DonorLink,
        sessions: ReservedSessions,
        writer: RangeWriter,
        status: ReceiveStatus,
        prefix: ClonedPrefix,
        load: ClientLoad,
    ) -> None:
        self._load = load
        self._is_donor_busy = False
        self._link = link
        self._sessions = sessions
        self._writer = writer
        self._status = status
        self._prefix = prefix

    async def run(self, first: CloneBatch) -> None:
        """Clone everything.

        Args:
            first: the first batch, which has been fetched already.

        Raises:
            CommandError: the donor refused or could not be reached; DuplicateKey, a document is here already.
            BackendError: the local mongod does not answer.
        """
        batches, fetched = trio.open_memory_channel[CloneBatch](0)
        pieces, waiting = trio.open_memory_channel[Piece](_PIECES_WAITING_MAX)
        writers = [waiting.clone() for _ in range(WRITERS)]
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
                batch = await self._link.clone_batch(number)

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
    """Documents in runs that are good for one transaction, each with its size in bytes."""
    begin, size = 0, 0
    for position, document in enumerate(documents):
        if position - begin >= PIECE_DOCUMENTS_MAX or (size and size + len(document) > PIECE_BYTES_MAX):
            yield documents[begin:position], size
            begin, size = position, 0
        size += len(document)
    if documents:
        yield documents[begin:], size
