"""``$merge`` into a sharded collection: the router reads the pipeline's results and writes them in batches."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from shardwright.router.cursors.cursor import GetMore
from shardwright.router.cursors.open_cursor import CursorOwner
from shardwright.router.operations.aggregation_plan import target_of
from shardwright.router.operations.checked_pipeline import EXECUTING, check_pipeline
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.write_execution import execute
from shardwright.router.pipelines.merge_stage import MergeStage
from shardwright.router.placement.collection_routing import CollectionRouting
from shardwright.router.reads.views import with_body
from shardwright.router.replies.cursor_reply import NEXT_BATCH, empty_cursor, first_batch
from shardwright.router.replies.reply_builder import Reply
from shardwright.router.writes.batch import WriteKind
from shardwright.sharding.pipelines.pipeline import Pipeline, Stage
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.message import OpMsg, encode_sequence, op_msg
from shardwright.wire.pipelines import with_stages
from shardwright.wire.rawbson import (
    append,
    array_documents,
    decode_document,
    encode_document,
    encode_elements,
    index,
    without,
)
from shardwright.wire.request import Request

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

Run = Callable[[Operation, str], Awaitable[Reply]]
"""Runs an aggregation, given the name of its cursor."""

Write = Callable[[Sequence[bytes]], Awaitable[None]]
"""Writes a batch of results."""


async def merge_target(operation: Operation, pipeline: Pipeline) -> CollectionRouting | None:
    """Return the routing of the target of a ``$merge`` at the end of a pipeline; None without such a target.

    Raises:
        CommandError: NamespaceNotFound, its database does not exist.
    """
    if not pipeline.stages or pipeline.stages[-1].name != "$merge":
        return None
    return await target_of(operation, pipeline.stages[-1])


def names_fields(merge: Stage) -> bool:
    """Whether a ``$merge`` names the fields to match by, for which mongos requires a unique index."""
    specification = merge.specification
    return isinstance(specification, Mapping) and "on" in specification


async def merge_into(
    operation: Operation, pipeline: Pipeline, target: CollectionRouting, cursor_namespace: str, run: Run
) -> Reply:
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
    merge = MergeStage.of(stage, operation.request.db, shard_key)
    reading = _reading(operation, pipeline, merge)
    await _read(reading, run, f"{cursor_namespace}.$merge", partial(_write, operation, merge))
    operation.targeted = reading.targeted
    return empty_cursor(cursor_namespace)


def _reading(operation: Operation, pipeline: Pipeline, merge: MergeStage) -> Operation:
    """Return the aggregation whose results are written."""
    stages = [stage.raw for stage in pipeline.stages[:-1]]
    if merge.last_stage is not None:
        stages.append(merge.last_stage)
    body = with_stages(without(operation.request.body, _NOT_FOR_READING), tuple(stages))
    body = append(body, encode_elements({"cursor": {"batchSize": _BATCH_DOCUMENTS}}))
    return operation.part(with_body(operation.request, body))


async def _read(reading: Operation, run: Run, namespace: str, write: Write) -> None:
    """Write the results of an aggregation as they arrive.

    Args:
        namespace: the namespace of its cursor. It differs from the collection's, so that no batch is relayed to the
            client.
    """
    cursors, owner = reading.context.cursors, CursorOwner.of(reading.request, reading.user)
    reply = await run(reading, namespace)
    cursor_id = _cursor_id(reply)
    try:
        await write(first_batch(reply))
        while cursor_id:
            with cursors.checked_out(cursor_id, namespace, owner, reading.client) as entry:
                get_more = GetMore(reading.request, reading.client, cursor_id, _BATCH_DOCUMENTS)
                frame = await entry.cursor.next_batch(get_more)
            assert frame is not None
            body = OpMsg(frame).body
            batch = index(body, index(body)[b"cursor"][2])[NEXT_BATCH]
            cursor_id = _cursor_id(frame)
            await write(array_documents(body, batch))
    finally:
        if cursor_id:
            cursors.kill(cursor_id)


def _cursor_id(reply: Reply) -> int:
    if not isinstance(reply, bytes):
        return 0
    body = OpMsg(reply).body
    if not decode_document(body).get("ok"):
        raise CommandError.from_reply(decode_document(body))
    span = index(body, index(body)[b"cursor"][2])[b"id"]
    return int.from_bytes(body[span[2] : span[3]], "little", signed=True)


async def _write(operation: Operation, merge: MergeStage, results: Sequence[bytes]) -> None:
    """Write a batch of results; raise the first error."""
    try:
        if results:
            await _write_some(operation, merge, results)
    except CommandError as error:
        error.message = EXECUTING + error.message
        raise


async def _write_some(operation: Operation, merge: MergeStage, results: Sequence[bytes]) -> None:
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


def _context_of(error: Mapping[str, Any], merge: MergeStage) -> str:
    """Return the prefix for the text of an error."""
    if error["code"] != ErrorCode.DuplicateKey:
        return _CONTEXTS.get(error["code"], "")
    if merge.when_matched == "fail" and set(error.get("keyPattern", ())) == set(merge.on):
        return (
            "$merge with whenMatched: fail found an existing document with the same values for the 'on' fields "
            ":: caused by :: "
        )
    return "$merge failed due to a DuplicateKey error :: caused by :: "


def _raise_for(reply: dict[str, Any], merge: MergeStage, count: int) -> None:
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
