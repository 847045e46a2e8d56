"""``aggregate``: a pipeline, on a collection or on none."""

from shardwright.router.change_streams.opening import open_change_stream
from shardwright.router.change_streams.specification import CHANGE_STREAM
from shardwright.router.commands.command_registry import command
from shardwright.router.commands.explain import explain_command
from shardwright.router.operations.aggregation import run_aggregate, run_on_all_shards, run_on_one_shard
from shardwright.router.operations.local_sessions import LIST_LOCAL_SESSIONS, aggregate_local_sessions
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import with_database
from shardwright.router.operations.view_reads import aggregate_view
from shardwright.router.pipelines.internal_stages import check_stages
from shardwright.router.placement.database_routing import DatabaseRouting
from shardwright.router.reads.aggregate import as_explained, check_fields
from shardwright.router.reads.collectionless import check_collectionless
from shardwright.router.reads.explained import ExplainedCommand
from shardwright.router.reads.pipeline import Pipeline
from shardwright.router.replies.own_reply import Reply
from shardwright.router.replies.shard_reply import ShardedViewError
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import STRING


@command("aggregate", reads=True, api_versions=("1",), supports_write_concern=True)
async def aggregate(operation: Operation) -> Reply:
    """Runs an aggregation pipeline on the shards that have the data."""
    request = operation.request
    check_fields(request)
    if request.get(b"explain"):
        body = as_explained(request)
        return await explain_command(operation, ExplainedCommand.of(request, body, "aggregate", "queryPlanner"))
    pipeline = Pipeline.parse(request)
    has_collection = next(iter(request.fields.values()))[0] == STRING
    if pipeline.first == CHANGE_STREAM:
        check_stages(pipeline)
        about = operation.namespace if has_collection else str(Namespace.collectionless_aggregate(request.db))
        return await open_change_stream(operation, pipeline, about)
    if not has_collection:
        return await _without_collection(operation, pipeline)
    try:
        return await run_aggregate(operation, operation.namespace)
    except ShardedViewError as error:
        return await aggregate_view(operation, error)


async def _without_collection(operation: Operation, pipeline: Pipeline) -> Reply:
    """Run ``{aggregate: 1}``, which reads no collection.

    Raises:
        CommandError: CommandNotSupported, or what a shard answers.
    """
    check_stages(pipeline)
    check_collectionless(operation.request, pipeline)
    db = operation.request.db
    namespace = str(Namespace.collectionless_aggregate(db))
    shards = await operation.context.shards.all_ids()
    if pipeline.first == "$currentOp" and db == "admin":
        return await run_on_all_shards(operation, pipeline, namespace)
    if pipeline.first == LIST_LOCAL_SESSIONS and shards:
        return await aggregate_local_sessions(operation, pipeline, shards)
    if pipeline.first == "$documents" and shards:

        async def on_primary(routing: DatabaseRouting) -> Reply:
            return await run_on_one_shard(operation, pipeline, routing.primary, routing.element)

        async def anywhere(_: DatabaseRouting) -> Reply:
            return await run_on_one_shard(operation, pipeline, shards[0], b"")

        try:
            return await with_database(operation, db, on_primary)
        except CommandError as error:
            if error.code != ErrorCode.NamespaceNotFound:
                raise
        return await with_database(operation, "admin", anywhere)
    raise CommandError(
        ErrorCode.CommandNotSupported,
        f"An aggregation of {{aggregate: 1}} that begins with '{pipeline.first}' is not supported through this router",
    )
