"""The bulk of a migration: documents pulled from the donor and inserted unchanged, by several writers.

A batch is fetched while the previous ones are written. It is cut into pieces; each piece is one transaction of a
reserved session. Documents are cut out by their length prefixes and never decoded. Pieces may be committed out of
order, so a checkpoint covers only the pieces before the first missing one.

While clients keep either shard busy, a writer rests after each piece for a multiple of the time that the piece took. A
clone otherwise uses all of the machine, and costs the clients most of their throughput.

**Inserts while documents change** (`RangeWriter`). The clone is not a snapshot. A document may arrive with a unique
value that another document had when *that* was read, or for a second time, with another shard key. It is postponed,
because later modifications make room for it or replace it; after each batch of modifications it is tried again. No
modification makes room where a document of another range, possibly this shard's own, has the same ``_id``: that fails
the migration, as in MongoDB.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, Protocol, TypeAlias
from uuid import UUID

import trio

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.local_collections import LOCAL_WRITE_CONCERN
from shardwright.shardd.local_mongod.reserved_sessions import ReservedSession, ReservedSessions
from shardwright.shardd.local_mongod.shard_key_index import ShardKeyIndex, all_documents, find_cursor
from shardwright.shardd.migration.active_migrations import ClientLoad
from shardwright.shardd.migration.recipient.donor_link import CloneBatch
from shardwright.shardd.migration.recipient.recv_chunk import ReceiveRequest
from shardwright.shardd.range_deleter.range_deleter_service import RangeDeletions
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError, RemoteProtocolError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import OBJECT, array_documents, find, raw_document, wrap_value

logger = get_logger("shardd.migration.recipient")

_WAIT_PARAMETER: Final = "receiveChunkWaitForRangeDeleterTimeoutMS"
_DELETED_AT_ONCE: Final = 1_000

Work: TypeAlias = Callable[[], Awaitable[None]]


class RangeMembership:
    """Decides whether documents belong to a range.

    Attributes:
        projection: the fields needed for the decision.
    """

    def __init__(self, pattern: ShardKeyPattern, wanted: ChunkRange) -> None:
        self._key_bytes_of = pattern.key_bytes_of_document
        self._range = wanted
        # A key of only MaxKey belongs to the last chunk, although it is not below its bound.
        self.projection = {"_id": 1, **{each.path[0].decode(): 1 for each in pattern.fields}}
        self._greatest = pattern.global_max_bytes() if wanted.max_key == pattern.global_max_bytes() else None

    def has(self, document: bytes) -> bool:
        """Whether a raw document, or just its shard key, belongs to the range."""
        key = self._key_bytes_of(document)
        return self._range.contains_key(key) or key == self._greatest


async def wait_range_free(
    mongod: LocalMongod, range_deletions: RangeDeletions, request: ReceiveRequest, collection_uuid: UUID
) -> None:
    """Return when no other range deletion, waiting or running, overlaps the range.

    Raises ExceededTimeLimit after ``receiveChunkWaitForRangeDeleterTimeoutMS``, a mongod parameter.
    """
    namespace = str(request.namespace)
    parameters = await mongod.command("admin", {"getParameter": 1, _WAIT_PARAMETER: 1})
    with trio.move_on_after(parameters[_WAIT_PARAMETER] / 1000):
        known = range_deletions.known
        await known.wait_no_overlap(
            namespace, collection_uuid, request.range, request.pattern, ignoring=request.migration_id
        )
        return
    raise CommandError(
        ErrorCode.ExceededTimeLimit,
        f"Failed to delete orphaned {namespace} range {request.range} :: caused by :: operation exceeded time limit",
    )


async def delete_received(
    mongod: LocalMongod, sessions: ReservedSessions, namespace: Namespace, pattern: ShardKeyPattern, wanted: ChunkRange
) -> int:
    """Delete all documents of a range that this shard has never owned; return how many there were.

    Raises IndexNotFound if no index supports the shard key.
    """
    index = await ShardKeyIndex.find(mongod, namespace, pattern)
    deleted = 0
    async with sessions.session() as session:
        for scan in index.scans(pattern, wanted):
            arguments, options = {**scan, "projection": {"_id": 1}}, {"batchSize": _DELETED_AT_ONCE}
            async with find_cursor(mongod, namespace, arguments, options=options) as cursor:
                async for batch in cursor:
                    statements = [{"q": raw_document(each), "limit": 1} for each in batch.documents()]
                    if statements:
                        deleted += await session.delete(namespace, statements)
    if deleted:
        logger.info("Deleted documents received by an earlier attempt", namespace=str(namespace), documents=deleted)
    return deleted


_POSTPONED_BYTES_MAX: Final = 64 * 1024 * 1024


class RangeWriter:
    """Inserts documents of one migration.

    Args:
        write_concern: the write concern of every transaction.
    """

    def __init__(
        self, mongod: LocalMongod, request: ReceiveRequest, write_concern: Mapping[str, Any] | None = None
    ) -> None:
        self._mongod = mongod
        self._namespace = request.namespace
        self._membership = RangeMembership(request.pattern, request.range)
        self._write_concern = write_concern or LOCAL_WRITE_CONCERN
        self._postponed: dict[bytes, tuple[bytes, CommandError]] = {}
        self._postponed_bytes = 0

    @property
    def has_postponed(self) -> bool:
        """Whether any documents are postponed."""
        return bool(self._postponed)

    def is_member(self, document: bytes) -> bool:
        """Whether a raw document belongs to the range."""
        return self._membership.has(document)

    async def insert(self, session: ReservedSession, documents: Sequence[bytes]) -> Sequence[bytes]:
        """Insert documents in one transaction; return those that were not postponed.

        Raises:
            CommandError: DuplicateKey, a document of another range has the same ``_id``, or too many are postponed; or
                any other error of an insert.
        """
        while documents:
            try:
                await session.insert(self._namespace, documents, write_concern=self._write_concern)
            except CommandError as error:
                if error.code == ErrorCode.WriteConcernFailed:
                    # As in MongoDB, slow secondaries delay a migration but do not fail it.
                    logger.warning(
                        "Secondaries are slow to replicate a migration",
                        namespace=str(self._namespace),
                        error=str(error),
                    )
                    return documents
                position = error.extra.get("index")
                if error.code != ErrorCode.DuplicateKey or not isinstance(position, int):
                    raise
                await self._postpone(documents[position], error)
                documents = [*documents[:position], *documents[position + 1 :]]
            else:
                return documents
        return ()

    def replace(self, documents: Iterable[bytes]) -> None:
        """Discard the postponed versions of documents for which newer modifications have arrived."""
        if self._postponed:
            for document in documents:
                postponed = self._postponed.pop(raw_id(document), None)
                if postponed is not None:
                    self._postponed_bytes -= len(postponed[0])

    def take_postponed(self) -> list[bytes]:
        """Remove and return the postponed documents, for another attempt to insert them."""
        documents = [document for document, _ in self._postponed.values()]
        self._postponed.clear()
        self._postponed_bytes = 0
        return documents

    def check_complete(self) -> None:
        """Check that no document is postponed any more, after the last modification, else raise DuplicateKey."""
        for _, error in self._postponed.values():
            raise error

    async def _postpone(self, document: bytes, error: CommandError) -> None:
        if error.extra.get("keyPattern") == {"_id": 1}:
            other = await self._with_same_id(document)
            if other is not None and not self._membership.has(other):
                raise CommandError(
                    ErrorCode.DuplicateKey,
                    f"cannot migrate chunk, local document {document_text(other)} has same _id as cloned remote "
                    f"document {document_text(wrap_value(*_id_of(document), b'_id'))}",
                    extra=error.extra,
                ) from error
        logger.debug("Postponing a document", namespace=str(self._namespace), error=str(error))
        self._postponed[raw_id(document)] = (document, error)
        self._postponed_bytes += len(document)
        if self._postponed_bytes > _POSTPONED_BYTES_MAX:
            raise error

    async def _with_same_id(self, document: bytes) -> bytes | None:
        """Return the local document with the ``_id`` of another one, projected to the fields that the check needs."""
        kind, value = _id_of(document)
        filter_ = raw_document(wrap_value(OBJECT, wrap_value(kind, value, b"$eq"), b"_id"))
        arguments = {"filter": filter_, "projection": self._membership.projection, "limit": 1, "singleBatch": True}
        return next(iter(await all_documents(self._mongod, self._namespace, arguments)), None)


def raw_id(document: bytes) -> bytes:
    """Return the ``_id`` of a raw document: its type and value, as a dictionary key."""
    kind, value = _id_of(document)
    return bytes((kind,)) + value


def _id_of(document: bytes) -> tuple[int, bytes]:
    span = find(document, b"_id")
    if span is None:
        raise CommandError(ErrorCode.NoSuchKey, "the donor sent a document without an _id")
    return span[0], document[span[2] : span[3]]


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
