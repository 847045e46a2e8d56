"""``aggregate``: a pipeline, on a collection or on none."""

from shardwright.router.change_streams.opening import open_change_stream
from shardwright.router.change_streams.specification import CHANGE_STREAM
from shardwright.router.commands.command_registry import command
from shardwright.router.commands.explain import explain_command
from shardwright.router.commands.local_operations import aggregate_local_operations, is_about_local_operations
from shardwright.router.joins.any_aggregate import aggregate_anywhere
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.pipeline_locations import check_out_targets
from shardwright.router.pipelines.internal_stages import check_stages
from shardwright.router.reads.aggregate import check_fields
from shardwright.router.reads.explained import ExplainedCommand
from shardwright.router.reads.pipeline import Pipeline
from shardwright.router.replies.own_reply import Reply
from shardwright.router.transactions.refused_pipelines import explanation_refused, refuse_stages
from shardwright.sharding.namespace import Namespace
from shardwright.wire.field_errors import not_allowed_strictly
from shardwright.wire.rawbson import STRING
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor


@command("aggregate", reads=True, api_versions=("1",), begins_in_reactor=True, supports_write_concern=True)
@may_run_in_reactor
async def aggregate(operation: Operation) -> Reply:
    """Runs an aggregation pipeline on the shards that have the data."""
    request = operation.request
    check_fields(request)
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
        return await open_change_stream(operation, pipeline, about)
    await in_own_task()
    if is_about_local_operations(operation, pipeline):
        return await aggregate_local_operations(operation, pipeline)
    return await aggregate_anywhere(operation, about)
