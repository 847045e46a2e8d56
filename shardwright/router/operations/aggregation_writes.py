"""Writes of aggregations by the router: ``$merge`` into a sharded collection, and writes at the first ``getMore``.

The ``$merge`` of a mongod writes to its own collection. A pipeline into a sharded collection therefore runs without the
stage. The router reads its results and writes them in batches. A mongod has validated the specification beforehand.

For an ``$out`` or ``$merge`` with ``batchSize: 0``, a mongod opens a cursor. Its ``getMore`` carries no routing
versions, so the target could be sharded in between. The router therefore keeps the aggregation, and starts it when the
client reads the cursor.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bson.objectid import ObjectId

from shardwright.router.exec.stage import GetMore, MissingStage, Stage
from shardwright.router.operations.checked_pipeline import EXECUTING, check_pipeline
from shardwright.router.operations.cursor_opening import AggregateRunner, OpenedRead, register
from shardwright.router.operations.involved_collections import OUT_TO_SHARDED, check_out_targets, merge_target
from shardwright.router.operations.nonexistent_namespace import unless_missing
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import with_routing
from shardwright.router.operations.router_documents import check_distribution
from shardwright.router.operations.write_execution import execute
from shardwright.router.pipelines.stages import WRITING, check_stages
from shardwright.router.placement.routing_info import CollectionRouting
from shardwright.router.reads.aggregations import batch_size
from shardwright.router.reads.views import with_body
from shardwright.router.replies.cursor_reply import FIRST_BATCH, cursor_element, empty_cursor
from shardwright.router.replies.reply_builder import Reply
from shardwright.router.writes.batch import WriteKind
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.pipelines.pipeline import Pipeline
from shardwright.sharding.pipelines.pipeline import Stage as PipelineStage
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.message import OpMsg, encode_sequence, op_msg
from shardwright.wire.rawbson import (
    ARRAY,
    NULL,
    OBJECT,
    UNDEFINED,
    Span,
    append,
    decode_document,
    element,
    encode_document,
    encode_elements,
    find,
    from_elements,
    index,
    is_string,
    without,
)
from shardwright.wire.request import Request, with_stages

MISSING_ON_FIELD: Final = 51132
ARRAY_ON_FIELD: Final = 51185
"""MongoDB's error codes for documents that cannot be merged."""

_DOCUMENT: Final = "d"
_VARIABLES: Final = "v"
_OPERATORS: Final = {"merge": b"$set", "keepExisting": b"$setOnInsert"}

_NO_MATCH: Final = 13113
_CONTEXTS: Final[Mapping[int, str]] = {
    ErrorCode.ImmutableField: (
        "$merge failed to update the matching document, did you attempt to modify the _id or the shard key? "
        ":: caused by :: "
    ),
}
"""Mongod's prefixes to errors of the statements that write."""

_BATCH_DOCUMENTS: Final = 1000
_NOT_FOR_READING: Final = frozenset({b"cursor", b"writeConcern", b"bypassDocumentValidation"})
_FOR_WRITING: Final = (
    *(b"lsid", b"writeConcern", b"bypassDocumentValidation", b"comment", b"maxTimeMS", b"mayBypassWriteBlocking"),
)
"""Arguments that are copied to the writes. ``$clusterTime`` is not: each message has the router's, which covers the
reads."""


@dataclass(frozen=True, slots=True)
class MergeArguments:
    """The arguments of a ``$merge``.

    Attributes:
        on: the fields that identify a document, dotted.
        let: the raw variables of the pipeline, None if there are none.
        when_matched: ``merge``, ``replace``, ``keepExisting``, ``fail`` or ``pipeline``.
        when_not_matched: ``insert``, ``fail`` or ``discard``.
        pipeline: the raw array that updates matched documents, if there is one.
    """

    target: Namespace
    on: tuple[str, ...]
    let: bytes | None = None
    when_matched: str = "merge"
    when_not_matched: str = "insert"
    pipeline: bytes | None = None

    @classmethod
    def of(cls, stage: PipelineStage, db: str, shard_key: Sequence[str]) -> "MergeArguments":
        """Parse the stage, which must be valid."""
        given: Any = stage.specification
        specification: dict[str, Any] = given if isinstance(given, dict) else {"into": given}
        into = specification["into"]
        target = Namespace(into.get("db") or db, into["coll"]) if isinstance(into, dict) else Namespace(db, into)
        on = specification.get("on", tuple(dict.fromkeys(("_id", *shard_key))))
        matched = specification.get("whenMatched", "merge")
        fields = index(stage.raw, stage.span[2]) if stage.span[0] == OBJECT else {}
        is_pipeline = isinstance(matched, list)
        return cls(
            target,
            (on,) if is_string(on) else tuple(on),
            _raw(stage.raw, fields.get(b"let")),
            "pipeline" if is_pipeline else matched,
            specification.get("whenNotMatched", "insert"),
            _raw(stage.raw, fields[b"whenMatched"]) if is_pipeline else None,
        )

    @property
    def last_stage(self) -> bytes | None:
        """The raw stage that replaces this one, None if the documents are written unchanged.

        It evaluates the variables, which may depend on each document.
        """
        if self.pipeline is None or self.let is None:
            return None
        variables = element(_VARIABLES.encode(), OBJECT, self.let)
        root = from_elements(encode_elements({_DOCUMENT: "$$ROOT"}) + variables)
        return from_elements(element(b"$replaceWith", OBJECT, root))

    def insert(self, result: bytes) -> bytes:
        """Return the document to insert for a result, if ``whenMatched`` is ``fail``.

        Raises:
            CommandError: 51132 or 51185, it lacks an identifying field.
        """
        document = _with_id(result) if "_id" in self.on else result
        self._query(document)
        return document

    def update(self, result: bytes) -> bytes:
        """Build the raw statement of an ``update`` for a result."""
        is_wrapped = self.last_stage is not None
        document = _raw(result, find(result, _DOCUMENT.encode())) if is_wrapped else result
        assert document is not None
        if "_id" in self.on:
            document = _with_id(document)
        inserts = self.when_not_matched == "insert"
        statement = element(b"q", OBJECT, self._query(document)) + self._modification(document)
        if self.pipeline is not None:
            variables = _raw(result, find(result, _VARIABLES.encode())) if is_wrapped else None
            new = element(b"new", OBJECT, document)
            rest = b"" if variables is None else b"".join(_elements_but(variables, b"new"))
            statement += element(b"c", OBJECT, from_elements(new + rest))
            if inserts:
                statement += encode_elements({"upsertSupplied": True})
        return from_elements(statement + encode_elements({"multi": False, "upsert": inserts}))

    def _modification(self, document: bytes) -> bytes:
        if self.pipeline is not None:
            return element(b"u", ARRAY, self.pipeline)
        if self.when_matched == "replace":
            return element(b"u", OBJECT, document)
        return element(b"u", OBJECT, from_elements(element(_OPERATORS[self.when_matched], OBJECT, document)))

    def _query(self, document: bytes) -> bytes:
        query = b"".join(
            element(path.encode(), OBJECT, from_elements(_value_of(document, path, b"$eq"))) for path in self.on
        )
        return from_elements(query)


def _value_of(document: bytes, path: str, name: bytes) -> bytes:
    """Return an element with the value at a path."""
    start = 0
    span: Span | None = None
    for field in path.split("."):
        if span is not None and span[0] not in (OBJECT, ARRAY):
            span = None
            break
        span = find(document, field.encode(), start)
        if span is None:
            break
        start = span[2]
        if span[0] == ARRAY:
            raise CommandError(ARRAY_ON_FIELD, f"$merge write error: 'on' field '{path}' is an array")
    if span is None or span[0] in (NULL, UNDEFINED):
        raise CommandError(
            MISSING_ON_FIELD,
            f"$merge write error: 'on' field '{path}' cannot be missing, null, undefined or an array",
        )
    return element(name, span[0], document[span[2] : span[3]])


def _with_id(document: bytes) -> bytes:
    if find(document, b"_id") is not None:
        return document
    return append(encode_document({"_id": ObjectId()}), document[4:-1])


def _elements_but(document: bytes, name: bytes) -> list[bytes]:
    return [document[start:end] for each, (_, start, _, end) in index(document).items() if each != name]


def _raw(document: bytes, span: Span | None) -> bytes | None:
    return None if span is None else document[span[2] : span[3]]


async def merge_into(
    operation: Operation, pipeline: Pipeline, target: CollectionRouting, cursor_namespace: str, run: AggregateRunner
) -> OpenedRead:
    """Run a pipeline without its last stage, a ``$merge``, and write the results to the target.

    Args:
        target: the routing of the target, which is sharded.
        cursor_namespace: the namespace of the client's cursor, which has no documents.

    Raises:
        ShardedViewError: the aggregation is on a view that no single shard can run.
        CommandError: a document cannot be written, or the pipeline fails. Earlier writes are not undone.
    """
    assert target.table is not None
    stage = pipeline.stages[-1]
    await check_pipeline(operation, min(target.shards))
    shard_key = [field.name.decode() for field in target.table.collection.key_pattern.fields]
    merge = MergeArguments.of(stage, operation.request.db, shard_key)
    reading = _reading(operation, pipeline, merge)
    read = await run(reading, cursor_namespace)
    get_more = GetMore(reading.request, reading.client, batch_size=_BATCH_DOCUMENTS)
    try:
        while not read.root.is_exhausted:
            await _write(operation, merge, await read.root.next_batch(get_more))
    finally:
        read.close()
    operation.targeted = reading.targeted
    return OpenedRead(operation, MissingStage(), cursor_namespace)


def _reading(operation: Operation, pipeline: Pipeline, merge: MergeArguments) -> Operation:
    """Return the aggregation whose results are written."""
    stages = [stage.raw for stage in pipeline.stages[:-1]]
    if merge.last_stage is not None:
        stages.append(merge.last_stage)
    body = with_stages(without(operation.request.body, _NOT_FOR_READING), tuple(stages))
    body = append(body, encode_elements({"cursor": {"batchSize": _BATCH_DOCUMENTS}}))
    return operation.part(with_body(operation.request, body))


async def _write(operation: Operation, merge: MergeArguments, results: Sequence[bytes]) -> None:
    """Write a batch of results; raise the first error."""
    try:
        if results:
            await _write_some(operation, merge, results)
    except CommandError as error:
        error.message = EXECUTING + error.message
        raise


async def _write_some(operation: Operation, merge: MergeArguments, results: Sequence[bytes]) -> None:
    is_insert = merge.when_matched == "fail"
    statements = [merge.insert(each) if is_insert else merge.update(each) for each in results]
    kind, name = (WriteKind.INSERT, "insert") if is_insert else (WriteKind.UPDATE, "update")
    passed = _FOR_WRITING if is_insert else (*_FOR_WRITING, b"let")
    sequence = b"documents" if is_insert else b"updates"
    command: dict[str, Any] = {name: merge.target.collection, "ordered": False, "$db": merge.target.db}
    given = operation.request.fields
    arguments = b"".join(operation.request.body[given[each][1] : given[each][3]] for each in passed if each in given)
    body = append(encode_document(command), arguments)
    message = op_msg(
        body, request_id=operation.request.message.request_id, sections=encode_sequence(sequence, statements)
    )
    reply = await execute(operation.part(Request(OpMsg(message))), kind)
    _raise_for(
        decode_document(OpMsg(reply).body) if isinstance(reply, bytes) else dict(reply or {}), merge, len(results)
    )


def _context_of(error: Mapping[str, Any], merge: MergeArguments) -> str:
    """Return the prefix for the text of an error."""
    if error["code"] != ErrorCode.DuplicateKey:
        return _CONTEXTS.get(error["code"], "")
    if merge.when_matched == "fail" and set(error.get("keyPattern", ())) == set(merge.on):
        return (
            "$merge with whenMatched: fail found an existing document with the same values for the 'on' fields "
            ":: caused by :: "
        )
    return "$merge failed due to a DuplicateKey error :: caused by :: "


def _raise_for(reply: dict[str, Any], merge: MergeArguments, count: int) -> None:
    """Raise the first error in the reply to a write, or the one for fewer matches than ``whenNotMatched`` requires."""
    if not reply.get("ok", 1):
        raise CommandError.from_reply(reply)
    for error in reply.get("writeErrors", ()):
        more = {name: value for name, value in error.items() if name not in ("index", "code", "errmsg")}
        raise CommandError(error["code"], _context_of(error, merge) + error["errmsg"], extra=more)
    if merge.when_not_matched == "fail" and reply.get("n", 0) < count:
        raise CommandError(
            _NO_MATCH,
            "$merge could not find a matching document in the target collection "
            "for at least one document in the source collection",
        )
    if "writeConcernError" in reply:
        raise CommandError(reply["writeConcernError"]["code"], reply["writeConcernError"]["errmsg"])


_GETTING_MORE: Final = "Executor error during getMore :: caused by :: "
_CURSOR: Final = b"cursor"


def is_deferred(request: Request, pipeline: Pipeline) -> bool:
    """Whether an aggregation on a collection writes at the first ``getMore``."""
    return bool(pipeline.stages) and pipeline.names[-1] in WRITING and batch_size(request) == 0


async def defer_write(operation: Operation, pipeline: Pipeline, run: AggregateRunner) -> Reply:
    """Check an aggregation that `is_deferred`, and open its cursor.

    Args:
        run: runs the aggregation later.

    Raises:
        CommandError: the pipeline is invalid; NamespaceNotFound, the target's database does not exist; 28769, the
            target of ``$out`` is sharded.
    """
    namespace = operation.namespace
    check_stages(pipeline)

    async def open_cursor(routing: CollectionRouting) -> Reply:
        if routing.is_sharded:
            check_distribution(pipeline, operation.request.db)
        await check_out_targets(operation, pipeline)
        target = await merge_target(operation, pipeline)
        writing = None if target is None else min(target.shards)
        operation.targeted = (await check_pipeline(operation, writing, all_arguments=True),)
        cursor_id = register(operation, namespace, DeferredWrite(operation, run))
        return operation.raw_reply(*cursor_element(FIRST_BATCH, [], cursor_id, namespace))

    opening = with_routing(operation, operation.namespace, open_cursor)
    return await unless_missing(operation, opening, empty_cursor(namespace))


class DeferredWrite(Stage):
    """An aggregation that has not started yet. It returns no documents."""

    __slots__ = ("_context", "_has_run", "_request", "_run", "reply_elements")

    def __init__(self, operation: Operation, run: AggregateRunner) -> None:
        body = append(without(operation.request.body, (_CURSOR,)), encode_elements({"cursor": {}}))
        self._context = operation.context
        self._request = with_body(operation.request, body)
        self._run = run
        self._has_run = False
        self.reply_elements = b""

    @property
    def is_exhausted(self) -> bool:
        """See `Stage`."""
        return self._has_run

    async def next_batch(self, get_more: GetMore) -> list[bytes]:
        """Run the aggregation; return an empty batch.

        Raises:
            CommandError: IllegalOperation, the target of ``$out`` is sharded; or another error of the aggregation.
        """
        self._has_run = True
        assert get_more.client is not None
        operation = Operation(self._context, get_more.client, self._request)
        reading = get_more.client.state
        assert isinstance(reading, Operation)
        operation.sender = reading.sender  # which traces its requests if the getMore is traced
        try:
            read = await self._run(operation, operation.namespace)
            await read.first_batch()
        except CommandError as error:
            raise _at_get_more(error) from error
        finally:
            reading.note_part(operation)
        self.reply_elements = read.root.reply_elements
        return []


def _at_get_more(error: CommandError) -> CommandError:
    """Return the error of a ``getMore`` for an aggregation's error."""
    if error.code == OUT_TO_SHARDED:
        target = error.message.partition(" ")[0]
        return CommandError(
            ErrorCode.IllegalOperation, f"{_GETTING_MORE}cannot rename to sharded collection '{target}'"
        )
    error.message = _GETTING_MORE + error.message.removeprefix(EXECUTING)
    return error
