"""Stages that run on a mongod, with documents of the router as their input.

* Stages that need all documents at once are one aggregation (`ComputedStage`). If the documents are few, the command
  contains them. Otherwise the mongod reads them from this router, through a cursor of the router that ``$mergeCursors``
  names (`HandedStage`).
* Stages on single documents run on batches (`BatchedStage`), or on one document at a time if a document and the
  stages nearly fill a command (`mapped_stage`).
* A document that joins with more than fits into a command is joined alone. The router then holds only a batch of the
  results. If a ``$unwind`` follows, each result is sent to a mongod by itself. A result that does not fit into a
  command together with the document is read from this router. Without a ``$unwind``, a mongod reads all results from
  this router and gathers them in an array.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import bson

from shardwright.daemon.users import SYSTEM
from shardwright.router.cursors.manager import CursorManager
from shardwright.router.cursors.open_cursor import NOBODY, Cursor, CursorOwner
from shardwright.router.exec.combined import BoundedStage, PrefetchedStage, RowStage
from shardwright.router.exec.remote import RemoteCursor
from shardwright.router.exec.stage import GetMore, ListStage, Stage, held_by, remotes_of
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
from shardwright.router.reads.result_merger import held_bytes
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.pipelines.pipeline import Stage as PipelineStage
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import EMPTY_DOCUMENT, OBJECT, element, encode_elements, from_elements, is_string

HANDED_BYTES_MAX: Final = 1024 * 1024

_ROUTER: Final = "router"


class HandedStage:
    """A stage as the input of a mongod's pipeline.

    Attributes:
        stage: the raw source of the pipeline.
        is_read_here: whether the mongod reads the documents from this router.
    """

    def __init__(self, cursors: CursorManager, stage: bytes, cursor_id: int = 0) -> None:
        self._cursors = cursors
        self._cursor_id = cursor_id
        self.stage = stage
        self.is_read_here = bool(cursor_id)

    @contextmanager
    def discarded_on_error(self) -> Iterator[None]:
        """End the router's cursor, if any, unless the block hands it to a mongod."""
        try:
            yield
        except BaseException:
            if self._cursor_id:
                self._cursors.kill(self._cursor_id)
            raise


async def hand_over(environment: JoinEnvironment, source: Stage, bytes_max: int = HANDED_BYTES_MAX) -> HandedStage:
    """Prepare a stage as the input of a mongod.

    Args:
        bytes_max: if it has more, the mongod reads it from the router.
    """
    cursors = environment.operation.context.cursors
    first: list[bytes] = []
    size = 0
    while batch := await source.next_batch(environment.reading):
        first += batch
        size += sum(map(len, batch))
        if size > bytes_max:
            return _readable(environment, PrefetchedStage(first, source))
    return HandedStage(cursors, documents_stage(first))


def _readable(environment: JoinEnvironment, source: Stage) -> HandedStage:
    operation = environment.operation
    context = operation.context
    namespace = str(Namespace.collectionless_aggregate(environment.db))
    # The mongod reads without a session, as a cluster member rather than as the client. It kills the cursor when its
    # own one ends, and may pause its reads for as long as the client pauses.
    reader = NOBODY if context.access is None else CursorOwner(user=SYSTEM.digest)
    session_key = CursorOwner.of(operation.request, operation.user).session_key
    cursor = Cursor(namespace, BoundedStage(source, environment.reading, first_size=None), context.clock)
    cursor_id = context.cursors.open(cursor, reader, session_key=session_key)
    reply = {"cursor": {"firstBatch": [], "id": bson.Int64(cursor_id), "ns": namespace}, "ok": 1.0}
    remote = {"shardId": _ROUTER, "hostAndPort": context.options.address, "cursorResponse": reply}
    merging = {"compareWholeSortKey": False, "remotes": [remote], "nss": namespace, "allowPartialResults": False}
    return HandedStage(context.cursors, stage("$mergeCursors", merging), cursor_id)


_FROM_ROUTER: Final = encode_elements({"fromMongos": True})


class ComputedStage(Stage):
    """The results of stages that need all documents."""

    def __init__(self, environment: JoinEnvironment, source: Stage, stages: Sequence[bytes]) -> None:
        self._environment = environment
        self._source = source
        self._stages = stages
        self._results: Stage | None = None

    @property
    def remotes(self) -> Sequence[RemoteCursor]:
        """See `Stage`."""
        return remotes_of(self._source, self._results)

    @property
    def held_bytes(self) -> int:
        """See `Stage`."""
        return held_by(self._source, self._results)

    async def next_batch(self, get_more: GetMore) -> list[bytes]:
        """See `Stage`."""
        if self._results is None:
            self._results = await self._open()
        return await self._results.next_batch(get_more)

    async def _open(self) -> Stage:
        room = COMMAND_BYTES_MAX - self._environment.command_bytes(self._stages)
        bytes_max = HANDED_BYTES_MAX if room > 2 * HANDED_BYTES_MAX else 0
        handed = await hand_over(self._environment, self._source, bytes_max)
        with handed.discarded_on_error():
            elements = _FROM_ROUTER if handed.is_read_here else b""
            return await self._environment.compute([handed.stage, *self._stages], elements=elements)


class Step(Protocol):
    """The processing of batches of documents."""

    async def pipelines(self, documents: Sequence[bytes]) -> Iterator[list[bytes]]:
        """Return the pipelines of raw stages whose combined results are the batch's results.

        For an empty batch, return pipelines for a mongod to validate before anything is read.

        Raises:
            TooLargeError: a batch needs more than may be held for it.
        """


RunAlone: TypeAlias = Callable[[bytes], Awaitable[Stage]]
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


class BatchedStage(Stage):
    """The results of a step on batches of documents."""

    def __init__(
        self,
        environment: JoinEnvironment,
        source: Stage,
        step: Step,
        run_alone: RunAlone | None = None,
        *,
        bytes_max: int = BATCH_BYTES,
    ) -> None:
        """Prepare the stage.

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
        self._results: Stage | None = None
        self._is_checked = False

    @property
    def remotes(self) -> Sequence[RemoteCursor]:
        """See `Stage`."""
        return remotes_of(self._source, self._results)

    @property
    def held_bytes(self) -> int:
        """See `Stage`."""
        return held_bytes(self._input) + held_by(self._source, self._results)

    async def next_batch(self, get_more: GetMore) -> list[bytes]:
        """See `Stage`."""
        await self._check()
        while True:
            if self._results is not None:
                documents = await self._results.next_batch(get_more)
                if documents:
                    return documents
                self._environment.operation.context.cursors.close(self._results)  # the shards may have more
                self._results = None
            stages = next(self._pipelines, None)
            if stages is not None:
                self._results = await self._environment.compute(stages)
                continue
            batch = await self._next_input(get_more)
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

    async def _next_input(self, get_more: GetMore) -> list[bytes]:
        if not self._input:
            self._input = await self._source.next_batch(get_more)
        size = 0
        for number, document in enumerate(self._input):
            size += len(document)
            if number and (size > self._bytes_max or number >= self._documents_max):
                batch, self._input = self._input[:number], self._input[number:]
                return batch
        batch, self._input = self._input, []
        return batch


def mapped_stage(environment: JoinEnvironment, source: Stage, stages: Sequence[bytes]) -> Stage:
    """Map documents by stages. Each command to a mongod carries as many documents as fit.

    A document that does not fit into a command together with the stages and variables is read from this router.
    """

    async def read_alone(document: bytes) -> Stage:
        return ComputedStage(environment, ListStage([document]), stages)

    used = environment.command_bytes(stages)
    step = MappingStep(stages, bytes_max=max(COMMAND_BYTES_MAX - used, 0))
    return BatchedStage(environment, source, step, read_alone, bytes_max=max(BATCH_BYTES - used, 0))


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
        first = PipelineStage.parse(tail[0]) if tail else None
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
    environment: JoinEnvironment, document: bytes, results: Stage, into: str, tail: Sequence[bytes]
) -> Stage:
    """Join a document with others.

    Args:
        into: path of the field for the joined documents.
        tail: raw stages on single documents that follow.
    """
    putting = [_constant(document), stage("$set", {f"d.{into}": "$r"})]
    unwind = _Unwind.of(tail, into)
    if unwind is None:
        rows = RowStage(results, _row, if_none=EMPTY_DOCUMENT, bytes_max=MEMORY_BYTES_MAX, excess=_too_large(into))
        gathering = stage("$group", {"_id": None, "r": {"$push": "$r"}})
        return ComputedStage(environment, rows, [gathering, *putting, _UNWRAPPING, *tail])
    if unwind.index_field is not None:
        putting.append(stage("$set", {f"d.{unwind.index_field}": "$n"}))
    rows = RowStage(results, _numbered_row, if_none=_NO_RESULT if unwind.keeps_empty else None)
    return mapped_stage(environment, rows, [*putting, _UNWRAPPING, *tail[1:]])


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
