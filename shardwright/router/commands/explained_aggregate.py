"""``explain`` of an aggregation: what the shards run, and what is left for a merger or for the router."""

from collections.abc import Sequence

from shardwright.router.joins.joined_aggregate import split_at_join
from shardwright.router.operations.aggregation_plan import AggregationPlan, plan_aggregation
from shardwright.router.operations.checked_pipeline import check_pipeline
from shardwright.router.operations.explained_shards import about_server, explained_by
from shardwright.router.operations.foreign_collections import NO_FOREIGN_COLLECTIONS, foreign_collections
from shardwright.router.operations.merge_writes import merge_target
from shardwright.router.operations.operation import Operation
from shardwright.router.pipelines.commands import NEEDS_MERGE
from shardwright.router.pipelines.explained_split import explained_split
from shardwright.router.pipelines.internal_stages import check_stages
from shardwright.router.pipelines.merge_type import merge_type
from shardwright.router.pipelines.moved_forward import moved_forward
from shardwright.router.pipelines.stages import WRITING
from shardwright.router.placement.collection_routing import CollectionRouting
from shardwright.router.reads.explain_reply import explain_aggregate_reply, passed_through
from shardwright.router.reads.explained import ExplainedCommand
from shardwright.router.reads.pipeline import Pipeline, Stage
from shardwright.router.replies.own_reply import Reply
from shardwright.router.replies.shard_reply import JoinNeededError
from shardwright.wire.rawbson import append, decode_document
from shardwright.wire.stages import with_stages


async def explain_aggregate(
    operation: Operation, routing: CollectionRouting, explained: ExplainedCommand, shards: Sequence[str]
) -> Reply:
    """The reply.

    Args:
        operation: the ``explain``.
        routing: of the aggregation's collection.
        explained: the aggregation.
        shards: the shards that it targets.

    Raises:
        StaleRoutingError: some shard refused the versions.
        ShardedViewError: the collection is a view that no shard can run alone.
        CommandError: a stage is wrong, or a shard failed.
    """
    pipeline = Pipeline.parse(explained.request)
    check_stages(pipeline)
    pipeline = moved_forward(pipeline)
    by_router: tuple[Stage, ...] = ()
    target = await merge_target(operation, pipeline)
    if target is not None and target.is_sharded:
        pipeline, by_router = Pipeline(pipeline.stages[:-1]), pipeline.stages[-1:]
    try:
        return await _explain(operation, routing, explained, shards, pipeline, by_router)
    except JoinNeededError as error:
        before, joined = split_at_join(pipeline, operation.request.db, error.elsewhere)
        return await _explain(operation, routing, explained, shards, Pipeline(before), joined + by_router)


async def _explain(
    operation: Operation,
    routing: CollectionRouting,
    explained: ExplainedCommand,
    shards: Sequence[str],
    pipeline: Pipeline,
    by_router: tuple[Stage, ...],
) -> Reply:
    """Explain a pipeline, the last stages of which the router executes itself.

    Raises:
        JoinNeededError: no shard has all collections that the others read.
        CommandError: as `explain_aggregate`.
    """
    plan = await plan_aggregation(operation, pipeline, shards)
    if plan is None and by_router:
        plan = AggregationPlan(pipeline.stages, ())
    if plan is not None:  # no shard sees the whole pipeline
        await _check(operation.part(explained.request))
    body, foreign = explained.body, NO_FOREIGN_COLLECTIONS
    if plan is not None:
        body = with_stages(body, tuple(stage.raw for stage in plan.shards_part))
        if plan.needs_merge:
            body = append(body, NEEDS_MERGE)
    if len(shards) == 1:
        on_shard = pipeline if plan is None else Pipeline(plan.shards_part)
        foreign = await foreign_collections(operation, on_shard, shards[0], operation.read_preference)
    with foreign.blamed():
        said = await explained_by(operation, routing, body, explained.verbosity, shards, foreign.version_elements)
    server = about_server(operation, said)
    if plan is None and not routing.is_sharded and not WRITING.intersection(pipeline.names):
        return passed_through(said[0], server, explained.shown)
    command = explained.shown or decode_document(explained.body)
    if plan is None:
        return explain_aggregate_reply(said, None, None, server, command)
    split = explained_split(plan.shards_part, (*plan.merger_part, *by_router), routing.namespace, plan.sort)
    merging = merge_type(plan.merger_part, may_spill=bool(explained.request.get(b"allowDiskUse")))
    return explain_aggregate_reply(said, merging, split, server, command)


async def _check(whole: Operation) -> None:
    """Have a mongod check the whole aggregation.

    Raises:
        CommandError: what mongod finds.
    """
    target = await merge_target(whole, Pipeline.parse(whole.request))
    await check_pipeline(whole, None if target is None else min(target.shards))
