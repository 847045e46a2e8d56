"""``explain`` of an aggregation: what the shards run, and what is left for a merger or for the router."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwright.router.change_streams.specification import CHANGE_STREAM
from shardwright.router.joins.joined_aggregate import split_at_join
from shardwright.router.operations.aggregation_plan import AggregationPlan, plan_aggregation
from shardwright.router.operations.checked_pipeline import check_pipeline
from shardwright.router.operations.collectionless import is_run_by_router, shards_without_collection
from shardwright.router.operations.explained_shards import about_server, explained_by
from shardwright.router.operations.foreign_collections import NO_FOREIGN_COLLECTIONS, foreign_collections
from shardwright.router.operations.merge_writes import merge_target, names_fields
from shardwright.router.operations.missing import unless_missing
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.pipeline_locations import check_out_targets
from shardwright.router.operations.sharded_data_distribution import check_distribution
from shardwright.router.pipelines.commands import NEEDS_MERGE
from shardwright.router.pipelines.explained_split import explained_split
from shardwright.router.pipelines.merge_type import merge_type
from shardwright.router.pipelines.moved_forward import moved_forward
from shardwright.router.pipelines.stages import COLLECTIONLESS, WRITING
from shardwright.router.placement.collection_routing import CollectionRouting
from shardwright.router.reads.explain_reply import explain_aggregate_reply, explain_router_reply, passed_through
from shardwright.router.reads.explained import ExplainedCommand
from shardwright.router.reads.pipeline import Pipeline, Stage
from shardwright.router.replies.cursor_reply import empty_cursor
from shardwright.router.replies.own_reply import Reply
from shardwright.router.replies.shard_reply import JoinNeededError
from shardwright.sharding.namespace import Namespace
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
    if routing.is_sharded:
        check_distribution(pipeline, operation.request.db)
    await check_out_targets(operation, pipeline)
    if pipeline.first in COLLECTIONLESS:
        await check_pipeline(operation.part(explained.request))
    pipeline = moved_forward(pipeline)
    by_router: tuple[Stage, ...] = ()
    target = await merge_target(operation, pipeline)
    if target is not None and names_fields(pipeline.stages[-1]):
        await check_pipeline(operation.part(explained.request), target.primary)
    if target is not None and target.is_sharded:
        pipeline, by_router = Pipeline(pipeline.stages[:-1]), pipeline.stages[-1:]
    versions = {shard: routing.versions_for(shard) for shard in shards}
    source = _Source(routing.namespace, versions, is_passed_on=not routing.is_sharded)
    try:
        return await _explain(operation, source, explained, pipeline, by_router)
    except JoinNeededError as error:
        before, joined = split_at_join(pipeline, operation.request.db, error.elsewhere)
        return await _explain(operation, source, explained, Pipeline(before), joined + by_router)


async def explain_without_collection(operation: Operation, explained: ExplainedCommand) -> Reply:
    """Explain an ``{aggregate: 1}``.

    Raises:
        CommandError: what is wrong with it, or a shard failed.
    """
    part = operation.part(explained.request)
    pipeline = Pipeline.parse(explained.request)
    namespace = str(Namespace.collectionless_aggregate(explained.request.db))

    async def explanation() -> Reply:
        shards = await shards_without_collection(part, pipeline)
        elements = dict.fromkeys(shards, b"")
        if not is_run_by_router(pipeline):
            await check_pipeline(part)
            source = _Source(namespace, elements, is_passed_on=False)
            return await _explain(operation, source, explained, moved_forward(pipeline), ())
        said = await explained_by(operation, explained.body, explained.verbosity, {shards[0]: b""})
        shown = decode_document(explained.body)
        return explain_router_reply(said[0], about_server(operation, said), operation.context.options.address, shown)

    return await unless_missing(part, explanation(), empty_cursor(namespace))


@dataclass(frozen=True, slots=True)
class _Source:
    """What an aggregation reads.

    Attributes:
        namespace: its collection.
        versions: the version elements for each shard that it targets.
        is_passed_on: whether a mongos passes the aggregation on, so that the shard explains it, unless it writes.
    """

    namespace: str
    versions: Mapping[str, bytes]
    is_passed_on: bool


async def _explain(
    operation: Operation,
    source: _Source,
    explained: ExplainedCommand,
    pipeline: Pipeline,
    by_router: tuple[Stage, ...],
) -> Reply:
    """Explain a pipeline, the last stages of which the router executes itself.

    Raises:
        JoinNeededError: no shard has all collections that the others read.
        CommandError: as `explain_aggregate`.
    """
    shards = tuple(source.versions)
    plan = await plan_aggregation(operation, pipeline, shards)
    if pipeline.first == CHANGE_STREAM or (plan is None and by_router):
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
        elements = {shard: versions + foreign.version_elements for shard, versions in source.versions.items()}
        said = await explained_by(operation, body, explained.verbosity, elements)
    server = about_server(operation, said)
    if plan is None and source.is_passed_on and not WRITING.intersection(pipeline.names):
        return passed_through(said[0], server, explained.shown)
    command = explained.shown or decode_document(explained.body)
    if plan is None:
        return explain_aggregate_reply(said, None, None, server, command)
    split = explained_split(plan.shards_part, (*plan.merger_part, *by_router), source.namespace, plan.sort)
    merging = "anyShard"  # as for a $merge into a sharded collection, which the shards divide between them
    if not (by_router and by_router[-1].name == "$merge"):
        merging = merge_type(plan.merger_part, may_spill=bool(explained.request.get(b"allowDiskUse")))
    return explain_aggregate_reply(said, merging, split, server, command)


async def _check(whole: Operation) -> None:
    """Have a mongod check the whole aggregation.

    Raises:
        CommandError: what mongod finds.
    """
    target = await merge_target(whole, Pipeline.parse(whole.request))
    await check_pipeline(whole, None if target is None else min(target.shards))
