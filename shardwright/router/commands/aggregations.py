"""``aggregate``, ``count`` and ``distinct``, and the aggregation stage ``$queryStats``.

``$queryStats`` returns the counts of operations by shape from all processes of this router. MongoDB has the stage since
7.0. Here it needs the privilege ``inprog``: MongoDB 6.0 has no ``queryStatsRead``.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import bson

from shardwright.router.change_streams.opening import open_change_stream
from shardwright.router.change_streams.specification import CHANGE_STREAM
from shardwright.router.commands.current_op import aggregate_local_operations, is_about_local_operations
from shardwright.router.commands.explain import explain_command
from shardwright.router.context.query_shapes import merged_documents
from shardwright.router.lookup.aggregate import aggregate_anywhere, aggregate_view
from shardwright.router.operations.aggregation_writes import defer_write, is_deferred
from shardwright.router.operations.cursor_opening import answer_cursor
from shardwright.router.operations.involved_collections import check_out_targets
from shardwright.router.operations.nonexistent_namespace import unless_missing
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import with_routing
from shardwright.router.operations.router_documents import answer_with_own_documents
from shardwright.router.operations.scatter import forwarded, scatter, send_to_one
from shardwright.router.pipelines.stages import check_stages
from shardwright.router.placement.routing_info import CollectionRouting, collation_unless_simple, shards_for_read
from shardwright.router.processes.siblings import is_from_sibling, send_to_siblings
from shardwright.router.reads.aggregations import (
    CountArguments,
    batch_size,
    merge_values,
    merging_aggregate,
    without_internal_fields,
)
from shardwright.router.reads.explain import ExplainedCommand
from shardwright.router.reads.find_arguments import collation_of
from shardwright.router.reads.read_concern import READ_CONCERN, is_snapshot
from shardwright.router.reads.views import COUNTED, DISTINCT
from shardwright.router.replies.cursor_reply import CursorReply, empty_cursor
from shardwright.router.replies.reply_builder import Reply
from shardwright.router.replies.shard_reply import ShardedViewError, ShardReply, latest_operation_time, raise_worst
from shardwright.router.transactions.transaction_rules import explanation_refused, refuse_stages
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.pipelines.pipeline import Pipeline
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, RemoteProtocolError, not_allowed_strictly
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import ARRAY, EMPTY_DOCUMENT, STRING, decode_document, element, index
from shardwright.wire.transport.reactor import in_own_task, may_run_in_reactor

QUERY_STATS: Final = "$queryStats"


@may_run_in_reactor
async def aggregate(operation: Operation) -> Reply:
    """Runs an aggregation pipeline on the shards that have the data."""
    request = without_internal_fields(operation.request)
    if request is not operation.request:
        operation = operation.part(request)
    if b"explain" in request.fields and request.get(b"apiStrict"):
        raise not_allowed_strictly("aggregate.explain")
    if request.get(b"explain"):
        await in_own_task()
        if operation.transaction is not None:
            raise explanation_refused()
        return await explain_command(operation, ExplainedCommand.of_aggregate(request))
    pipeline = Pipeline.parse(request)
    if operation.transaction is not None:
        refuse_stages(stage.name for stage in pipeline.stages)
    has_collection = next(iter(request.fields.values()))[0] == STRING
    about = operation.namespace if has_collection else str(Namespace.collectionless_aggregate(request.db))
    if pipeline.first == CHANGE_STREAM:
        check_stages(pipeline)
        if "$out" in pipeline.names:
            await in_own_task()
            await check_out_targets(operation, pipeline)
        try:
            return await open_change_stream(operation, pipeline, about)
        except CommandError as error:
            await in_own_task()
            return await _empty_without_shards(operation, error, about)
    await in_own_task()
    if is_about_local_operations(operation, pipeline):
        return await aggregate_local_operations(operation, pipeline)
    if pipeline.first == QUERY_STATS:
        return await _aggregate_query_stats(operation, pipeline)
    if has_collection and is_deferred(request, pipeline):
        return await defer_write(operation, pipeline, aggregate_anywhere)
    try:
        return await answer_cursor(await aggregate_anywhere(operation, about))
    except CommandError as error:
        return await _empty_without_shards(operation, error, about)


async def _empty_without_shards(operation: Operation, error: CommandError, namespace: str) -> Reply:
    """Return an empty cursor, as mongos, if an aggregation failed because there are no shards; else raise its error."""
    if error.code != ErrorCode.ShardNotFound or await operation.context.shards.all_ids():
        raise error
    batch_size(operation.request)  # checks the option
    return empty_cursor(namespace)


async def count(operation: Operation) -> Reply:
    """Counts the documents that match a filter."""
    arguments = CountArguments.parse(operation.request)
    collation = collation_of(operation.request)
    body = arguments.body_for_shards(operation.request.body)

    async def attempt(routing: CollectionRouting) -> Reply:
        shards = shards_for_read(routing, arguments.query, collation)
        replies = await scatter(
            operation,
            {shard: forwarded(operation, routing.versions_for(shard), body) for shard in shards},
            preference=operation.read_preference,
            may_repeat=True,
        )
        raise_worst(replies)
        operation.operation_time = latest_operation_time(replies)
        counts = {reply.shard_id: int(reply.get(b"n", 0)) for reply in replies}
        return {"shards": counts, "n": arguments.total(list(counts.values()))}

    nothing = {"shards": {}, "n": 0}
    try:
        return await unless_missing(operation, with_routing(operation, operation.namespace, attempt), nothing)
    except ShardedViewError as error:
        if is_snapshot(operation.request):
            raise _no_snapshots(operation.argument(READ_CONCERN)) from error
        documents = await (await aggregate_view(operation, error)).first_batch()
        return {"n": decode_document(documents[0])[COUNTED] if documents else 0}


def _no_snapshots(concern: Mapping[str, Any]) -> CommandError:
    """Return a mongod's error for a snapshot count. On a view it must be raised here: aggregations read snapshots."""
    text = document_text(bson.encode({"readConcern": {**concern, "provenance": "clientSupplied"}}))
    return CommandError(
        ErrorCode.InvalidOptions,
        f"Command count does not support {text} :: caused by :: read concern snapshot not supported",
    )


_NOT_IN_TRANSACTIONS: Final = (
    "Cannot run 'distinct' on a sharded collection in a multi-document transaction. Please see "
    "http://dochub.mongodb.org/core/transaction-distinct for a recommended alternative."
)


async def distinct(operation: Operation) -> Reply:
    """Returns the different values that a field has in matching documents."""
    request = operation.request
    query = Arguments.of(request, "distinct").maybe_raw(b"query")
    collation = collation_of(request)

    async def attempt(routing: CollectionRouting) -> Reply:
        if routing.is_sharded and operation.transaction is not None:
            raise CommandError(ErrorCode.OperationNotSupportedInTransaction, _NOT_IN_TRANSACTIONS)
        if routing.is_sharded and is_snapshot(request):
            raise CommandError(
                ErrorCode.InvalidOptions,
                'readConcern level "snapshot" prohibited for "distinct" command on sharded collection',
            )
        shards = shards_for_read(routing, EMPTY_DOCUMENT if query is None else query, collation)
        frames = {shard: forwarded(operation, routing.versions_for(shard)) for shard in shards}
        if len(frames) == 1:
            [(shard, frame)] = frames.items()
            reply = await send_to_one(operation, shard, frame, preference=operation.read_preference, may_repeat=True)
            return reply.for_client()
        replies = await scatter(operation, frames, preference=operation.read_preference, may_repeat=True)
        raise_worst(replies)
        operation.operation_time = latest_operation_time(replies)
        arrays = [_values(reply) for reply in replies]
        collating = collation_unless_simple(routing, collation)
        merged = merge_values(arrays) if collating is None else await _merge_on(operation, shards[0], arrays, collating)
        return operation.raw_reply(element(b"values", ARRAY, merged))

    try:
        return await unless_missing(operation, with_routing(operation, operation.namespace, attempt), {"values": []})
    except ShardedViewError as error:
        documents = await (await aggregate_view(operation, error)).first_batch()
        return operation.raw_reply(element(b"values", ARRAY, _gathered(documents)))


async def _merge_on(operation: Operation, shard: str, arrays: Sequence[bytes], collation: Mapping[str, Any]) -> bytes:
    """Merge all values under a collation on a mongod of one of the shards; return the raw array."""
    command_body = merging_aggregate(arrays, collation, operation.request.db)
    frame = op_msg(command_body, request_id=next_request_id())
    reply = await operation.context.sender.send(shard, frame, may_repeat=True)
    reply.raise_for_error()
    documents = CursorReply.of(reply).documents()
    if not documents:
        return EMPTY_DOCUMENT
    values = index(documents[0])[b"values"]
    return documents[0][values[2] : values[3]]


def _gathered(documents: Sequence[bytes]) -> bytes:
    """Return the raw array of values from the aggregation of a ``distinct``, empty if there were none."""
    if not documents:
        return EMPTY_DOCUMENT
    values = index(documents[0])[DISTINCT.encode()]
    return documents[0][values[2] : values[3]]


def _values(reply: ShardReply) -> bytes:
    span = reply.fields.get(b"values")
    if span is None or span[0] != ARRAY:
        raise RemoteProtocolError(f"{reply.shard_id} answered distinct without values")
    return reply.body[span[2] : span[3]]


async def _aggregate_query_stats(operation: Operation, pipeline: Pipeline) -> Reply:
    """Run a pipeline that begins with ``$queryStats``.

    Raises:
        CommandError: InvalidNamespace; FailedToParse, the stage has arguments; or the shard that evaluates further
            stages failed.
    """
    check_stages(pipeline)
    request, context = operation.request, operation.context
    if request.db != "admin" or next(iter(request.fields.values()))[0] == STRING:
        message = f"{QUERY_STATS} must be run against the 'admin' database with {{aggregate: 1}}"
        raise CommandError(ErrorCode.InvalidNamespace, message)
    if pipeline.stages[0].specification != {}:
        raise CommandError(ErrorCode.FailedToParse, f"{QUERY_STATS} takes no arguments, so its value must be {{}}")
    own = context.query_shapes.documents()
    if is_from_sibling(request):
        return {"shapes": own}
    replies = await send_to_siblings(context, "admin", _COUNTS_OF_PROCESS)
    documents = merged_documents([own, *(reply["shapes"] for reply in replies)])
    return await answer_with_own_documents(operation, documents, pipeline)


_COUNTS_OF_PROCESS: Final = {"aggregate": 1, "pipeline": [{QUERY_STATS: {}}], "cursor": {}}
"""The command by which another process of the router returns its counts."""
