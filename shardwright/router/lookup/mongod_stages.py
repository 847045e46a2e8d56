"""Stages that run on a mongod, with a stream of the router as their input.

* Stages that need all documents at once are one aggregation (`ComputedStream`). If the documents are few, the command
  contains them. Otherwise the mongod reads them from this router, through a cursor of the router that ``$mergeCursors``
  names (`HandedStream`, `StreamCursor`).
* Stages on single documents run on batches (`BatchedStream`), or on one document at a time if a document and the
  stages nearly fill a command (`mapped_stream`).
* A document that joins with more than fits into a command is joined alone. The router then holds only a batch of the
  results. If a ``$unwind`` follows, each result is sent to a mongod by itself. A result that does not fit into a
  command together with the document is read from this router. Without a ``$unwind``, a mongod reads all results from
  this router and gathers them in an array.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import bson
from bson.timestamp import Timestamp

from shardwright.daemon.user_names import SYSTEM
from shardwright.router.cursors.cursor import GetMore
from shardwright.router.cursors.manager import CursorManager
from shardwright.router.cursors.open_cursor import NOBODY, CursorOwner
from shardwright.router.cursors.remote import RemoteCursor
from shardwright.router.lookup.environment import JoinEnvironment
from shardwright.router.lookup.pipeline_input import (
    BATCH_BYTES,
    BATCH_DOCUMENTS,
    COMMAND_BYTES_MAX,
    MEMORY_BYTES_MAX,
    Room,
    TooLargeError,
    chunks,
    documents_stage,
    raw_stage,
    stage,
)
from shardwright.router.lookup.streams import DocumentStream, ListStream, PrefetchedStream, RowStream, remotes_of
from shardwright.router.reads.result_merger import FIRST_BATCH_DOCUMENTS, Batch
from shardwright.router.replies.cursor_reply import FIRST_BATCH, NEXT_BATCH, cursor_element
from shardwright.router.replies.reply_builder import raw_reply
from shardwright.sharding.clock import VectorClock
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.pipelines.pipeline import Stage
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import EMPTY_DOCUMENT, OBJECT, element, encode_elements, from_elements, is_string


class StreamCursor:
    """A `cursors.cursor.Cursor` on a stream."""

    def __init__(
        self, clock: VectorClock, namespace: str, stream: DocumentStream, *, at_cluster_time: Timestamp | None = None
    ) -> None:
        """Create the cursor.

        Args:
            at_cluster_time: the time of the documents' snapshot, for replies; None outside snapshots.
        """
        self.namespace = namespace
        self.held_bytes = 0
        self.is_exhausted = False
        self._clock = clock
        self._stream = stream
        self._at_cluster_time = at_cluster_time
        self._pending: deque[bytes] = deque()
        self._has_ended = False

    @property
    def remotes(self) -> Sequence[RemoteCursor]:
        """The open cursors of the stream on shards."""
        return self._stream.remotes

    async def first_batch(self, opening: GetMore) -> list[bytes]:
        """Return the documents of the first batch, by default 101."""
        size = FIRST_BATCH_DOCUMENTS if opening.batch_size is None else opening.batch_size
        return await self._read(Batch(size))

    def first_reply(self, opening: GetMore, documents: list[bytes], cursor_id: int) -> bytes:
        """Build the reply to the command that opened the cursor; ``cursor_id`` is 0 if the cursor is exhausted."""
        return self._reply(opening, FIRST_BATCH, documents, cursor_id)

    async def next_batch(self, get_more: GetMore) -> bytes | None:
        """Reply to a ``getMore`` with the requested number of documents; without a number, with the available ones.

        Raises:
            CommandError: BadValue for ``maxTimeMS``, which is for cursors that await data; or they could not be read.
        """
        if get_more.max_time_ms:
            raise CommandError(ErrorCode.BadValue, "cannot set maxTimeMS on getMore command for a non-awaitData cursor")
        documents = await self._read(Batch(get_more.batch_size))
        return self._reply(get_more, NEXT_BATCH, documents, 0 if self.is_exhausted else get_more.cursor_id)

    async def _read(self, batch: Batch) -> list[bytes]:
        while True:
            while self._pending and batch.add(self._pending[0]):
                self.held_bytes -= len(self._pending.popleft())
            has_enough = batch.is_full or (batch.documents_max is None and batch.documents)
            if self._pending or self._has_ended or has_enough:
                break
            documents = await self._stream.next_batch()
            self._has_ended = not documents
            self._pending.extend(documents)
            self.held_bytes += sum(map(len, documents))
        self.is_exhausted = self._has_ended and not self._pending
        return batch.documents

    def _reply(self, get_more: GetMore, batch_name: bytes, documents: list[bytes], cursor_id: int) -> bytes:
        element = cursor_element(
            batch_name, documents, cursor_id, self.namespace, at_cluster_time=self._at_cluster_time
        )
        return raw_reply(get_more.request.message.request_id, element, self._clock)


HANDED_BYTES_MAX: Final = 1024 * 1024

_ROUTER: Final = "router"


class HandedStream:
    """A stream as the input of a mongod's pipeline.

    Attributes:
        is_read_here: whether the mongod reads the documents from this router.
    """

    def __init__(self, cursors: CursorManager, stage: bytes, cursor_id: int = 0) -> None:
        self._cursors = cursors
        self._cursor_id = cursor_id
        self.stage = stage
        self.is_read_here = bool(cursor_id)

    def discard(self) -> None:
        """End the stream, if no mongod is going to read it or one has failed to."""
        if self._cursor_id:
            self._cursors.kill(self._cursor_id)


async def hand_over(
    environment: JoinEnvironment, stream: DocumentStream, bytes_max: int = HANDED_BYTES_MAX
) -> HandedStream:
    """Prepare a stream as the input of a mongod.

    Args:
        bytes_max: larger streams are read from the router.
    """
    cursors = environment.operation.context.cursors
    first: list[bytes] = []
    size = 0
    while batch := await stream.next_batch():
        first += batch
        size += sum(map(len, batch))
        if size > bytes_max:
            return _readable(environment, PrefetchedStream(first, stream))
    return HandedStream(cursors, documents_stage(first))


def _readable(environment: JoinEnvironment, stream: DocumentStream) -> HandedStream:
    operation = environment.operation
    context = operation.context
    namespace = str(Namespace.collectionless_aggregate(environment.db))
    # The mongod reads without a session, as a cluster member rather than as the client. It kills the cursor when its
    # own one ends, and may pause its reads for as long as the client pauses.
    reader = NOBODY if context.access is None else CursorOwner(user=SYSTEM.digest)
    session_key = CursorOwner.of(operation.request, operation.user).session_key
    cursor = StreamCursor(context.clock, namespace, stream)
    cursor_id = context.cursors.open(cursor, reader, session_key=session_key)
    reply = {"cursor": {"firstBatch": [], "id": bson.Int64(cursor_id), "ns": namespace}, "ok": 1.0}
    remote = {"shardId": _ROUTER, "hostAndPort": context.options.address, "cursorResponse": reply}
    merging = {"compareWholeSortKey": False, "remotes": [remote], "nss": namespace, "allowPartialResults": False}
    return HandedStream(context.cursors, stage("$mergeCursors", merging), cursor_id)


_FROM_ROUTER: Final = encode_elements({"fromMongos": True})


class ComputedStream:
    """A `streams.DocumentStream` of the results of stages that need all documents."""

    def __init__(self, environment: JoinEnvironment, source: DocumentStream, stages: Sequence[bytes]) -> None:
        """Prepare the stream."""
        self._environment = environment
        self._source = source
        self._stages = stages
        self._results: DocumentStream | None = None

    @property
    def remotes(self) -> Sequence[RemoteCursor]:
        """See `streams.DocumentStream`."""
        return remotes_of(self._source, self._results)

    async def next_batch(self) -> list[bytes]:
        """See `streams.DocumentStream`."""
        if self._results is None:
            self._results = await self._open()
        return await self._results.next_batch()

    async def _open(self) -> DocumentStream:
        room = COMMAND_BYTES_MAX - self._environment.command_bytes(self._stages)
        bytes_max = HANDED_BYTES_MAX if room > 2 * HANDED_BYTES_MAX else 0
        handed = await hand_over(self._environment, self._source, bytes_max)
        is_open = False
        try:
            elements = _FROM_ROUTER if handed.is_read_here else b""
            results = await self._environment.compute([handed.stage, *self._stages], elements=elements)
            is_open = True
            return results
        finally:
            if not is_open:
                handed.discard()


class Step(Protocol):
    """The processing of batches of documents."""

    async def pipelines(self, documents: Sequence[bytes]) -> Iterator[list[bytes]]:
        """Return the pipelines of raw stages whose combined results are the batch's results.

        For an empty batch, return pipelines for a mongod to validate before anything is read.

        Raises:
            TooLargeError: a batch needs more than may be held for it.
        """


RunAlone: TypeAlias = Callable[[bytes], Awaitable[DocumentStream]]
"""Processes a single document that is too large for a batch of its own."""


class MappingStep:
    """Stages that work on single documents.

    Args:
        bytes_max: the maximum size of documents for one command; None if all documents fit.
    """

    def __init__(self, stages: Sequence[bytes], *, bytes_max: int | None = None) -> None:
        self._stages = stages
        self._bytes_max = bytes_max

    async def pipelines(self, documents: Sequence[bytes]) -> Iterator[list[bytes]]:
        """See `Step`."""
        if self._bytes_max is not None and sum(map(len, documents)) > self._bytes_max:
            raise TooLargeError(self._bytes_max)
        return ([documents_stage(chunk), *self._stages] for chunk in chunks(documents))


class BatchedStream:
    """A `streams.DocumentStream` of the results of a step on batches of documents."""

    def __init__(
        self,
        environment: JoinEnvironment,
        source: DocumentStream,
        step: Step,
        run_alone: RunAlone | None = None,
        *,
        bytes_max: int = BATCH_BYTES,
    ) -> None:
        """Prepare the stream.

        Args:
            run_alone: processes single documents that are too large; None if the step never needs too much.
            bytes_max: the size of a batch, unless a single document is larger.
        """
        self._environment = environment
        self._source = source
        self._step = step
        self._run_alone = run_alone
        self._bytes_max = bytes_max
        self._documents_max = BATCH_DOCUMENTS
        self._input: list[bytes] = []
        self._pipelines: Iterator[list[bytes]] = iter(())
        self._results: DocumentStream | None = None
        self._is_checked = False

    @property
    def remotes(self) -> Sequence[RemoteCursor]:
        """See `streams.DocumentStream`."""
        return remotes_of(self._source, self._results)

    async def next_batch(self) -> list[bytes]:
        """See `streams.DocumentStream`."""
        await self._check()
        while True:
            if self._results is not None:
                documents = await self._results.next_batch()
                if documents:
                    return documents
                self._results = None
            stages = next(self._pipelines, None)
            if stages is not None:
                self._results = await self._environment.compute(stages)
                continue
            batch = await self._next_input()
            if not batch:
                return []
            await self._begin(batch)

    async def _begin(self, batch: list[bytes]) -> None:
        """Begin with a batch. If it needs too much, put it back and use smaller batches from now on."""
        try:
            self._pipelines = await self._step.pipelines(batch)
            self._documents_max = min(2 * self._documents_max, BATCH_DOCUMENTS)
        except TooLargeError:
            if len(batch) > 1:
                self._documents_max = len(batch) // 2
                self._input = [*batch, *self._input]
                return
            if self._run_alone is None:
                raise
            self._results = await self._run_alone(batch[0])

    async def _check(self) -> None:
        """Validate the stages on a mongod before anything is read for them."""
        if not self._is_checked:
            self._is_checked = True
            for stages in await self._step.pipelines(()):
                await self._environment.collect(await self._environment.compute(stages), Room(BATCH_BYTES))

    async def _next_input(self) -> list[bytes]:
        if not self._input:
            self._input = await self._source.next_batch()
        size = 0
        for number, document in enumerate(self._input):
            size += len(document)
            if number and (size > self._bytes_max or number >= self._documents_max):
                batch, self._input = self._input[:number], self._input[number:]
                return batch
        batch, self._input = self._input, []
        return batch


def mapped_stream(environment: JoinEnvironment, source: DocumentStream, stages: Sequence[bytes]) -> DocumentStream:
    """Map the documents of a stream by stages. Each command to a mongod carries as many documents as fit.

    A document that does not fit into a command together with the stages and variables is read from this router.
    """

    async def read_alone(document: bytes) -> DocumentStream:
        return ComputedStream(environment, ListStream([document]), stages)

    used = environment.command_bytes(stages)
    step = MappingStep(stages, bytes_max=max(COMMAND_BYTES_MAX - used, 0))
    return BatchedStream(environment, source, step, read_alone, bytes_max=max(BATCH_BYTES - used, 0))


TOO_LARGE: Final = 4568
"""MongoDB's error code for a document that a ``$lookup`` would make too large."""

_UNWRAPPING: Final = stage("$replaceWith", "$d")
_OPTIONS: Final = frozenset({"path", "includeArrayIndex", "preserveNullAndEmptyArrays"})


@dataclass(frozen=True, slots=True)
class _Unwind:
    index_field: str | None
    keeps_empty: bool

    @classmethod
    def of(cls, tail: Sequence[bytes], into: str) -> "_Unwind | None":
        """Parse the first stage if it is an ``$unwind`` of the joined documents; otherwise return None."""
        first = Stage.parse(tail[0]) if tail else None
        if first is None or first.name != "$unwind":
            return None
        given = first.specification
        options = {"path": given} if is_string(given) else given
        if not isinstance(options, dict) or options.get("path") != f"${into}" or not _OPTIONS.issuperset(options):
            return None
        index_field, keeps_empty = options.get("includeArrayIndex"), options.get("preserveNullAndEmptyArrays", False)
        if not (index_field is None or is_string(index_field)) or not isinstance(keeps_empty, bool):
            return None  # a mongod reports the error
        return cls(index_field, keeps_empty)


def joined_alone(
    environment: JoinEnvironment, document: bytes, results: DocumentStream, into: str, tail: Sequence[bytes]
) -> DocumentStream:
    """Join a document with the documents of a stream.

    Args:
        into: path of the field for the joined documents.
        tail: raw stages on single documents that follow.
    """
    putting = [_constant(document), stage("$set", {f"d.{into}": "$r"})]
    unwind = _Unwind.of(tail, into)
    if unwind is None:
        rows = RowStream(results, _row, if_none=EMPTY_DOCUMENT, bytes_max=MEMORY_BYTES_MAX, excess=_too_large(into))
        gathering = stage("$group", {"_id": None, "r": {"$push": "$r"}})
        return ComputedStream(environment, rows, [gathering, *putting, _UNWRAPPING, *tail])
    if unwind.index_field is not None:
        putting.append(stage("$set", {f"d.{unwind.index_field}": "$n"}))
    rows = RowStream(results, _numbered_row, if_none=_NO_RESULT if unwind.keeps_empty else None)
    return mapped_stream(environment, rows, [*putting, _UNWRAPPING, *tail[1:]])


def _row(result: bytes, _: int) -> bytes:
    return from_elements(element(b"r", OBJECT, result))


def _numbered_row(result: bytes, number: int) -> bytes:
    return from_elements(element(b"r", OBJECT, result) + encode_elements({"n": bson.Int64(number)}))


_NO_RESULT: Final = from_elements(encode_elements({"n": None}))


def _constant(document: bytes) -> bytes:
    """Return the stage that adds the document to a row."""
    literal = from_elements(element(b"$literal", OBJECT, document))
    return raw_stage(b"$set", from_elements(element(b"d", OBJECT, literal)))


def _too_large(into: str) -> CommandError:
    return CommandError(
        TOO_LARGE, f"Total size of the documents that are joined as {into} exceeds {MEMORY_BYTES_MAX} bytes"
    )
