"""``explain``: the execution plan of a command, in the router and on the shards.

For an aggregation it shows ``shardsPart`` and ``mergerPart``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Final, Literal

from shardwright.router.change_streams.specification import CHANGE_STREAM
from shardwright.router.commands.map_reduce import refuse_view
from shardwright.router.lookup.aggregate import split_at_join
from shardwright.router.operations.aggregation_plan import (
    NO_FOREIGN_COLLECTIONS,
    AggregationPlan,
    check_out_targets,
    foreign_collections,
    plan_aggregation,
)
from shardwright.router.operations.checked_pipeline import check_pipeline
from shardwright.router.operations.collectionless import is_run_by_router, shards_without_collection
from shardwright.router.operations.explained_shards import about_server, explained_by
from shardwright.router.operations.merge_writes import merge_target, names_fields
from shardwright.router.operations.nonexistent_namespace import unless_missing
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import ATTEMPTS_MAX, with_routing
from shardwright.router.operations.router_documents import check_distribution
from shardwright.router.pipelines.commands import NEEDS_MERGE, explained_split, merge_type
from shardwright.router.pipelines.stages import COLLECTIONLESS, WRITING, check_stages, check_update_stages
from shardwright.router.pipelines.targeting import shards_for_pipeline
from shardwright.router.placement.collection_routing import CollectionRouting
from shardwright.router.reads.explain import (
    ExplainedCommand,
    explain_aggregate_reply,
    explain_reply,
    explain_router_reply,
    explains_aggregation,
    passed_through,
)
from shardwright.router.reads.find_arguments import refuse_ntoreturn
from shardwright.router.reads.map_reduce import MapReduce, internal_error
from shardwright.router.reads.targeting import shards_for_read
from shardwright.router.reads.views import ResolvedView, not_on_view
from shardwright.router.replies.cursor_reply import empty_cursor
from shardwright.router.replies.reply_builder import Reply
from shardwright.router.replies.shard_reply import JoinNeededError, ShardedViewError
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.pipelines.pipeline import Pipeline, Stage
from shardwright.sharding.pipelines.pushdown import moved_forward
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.targeting.statements import DeleteStatement, UpdateStatement
from shardwright.sharding.targeting.writes import (
    ALL_SHARDS,
    Broadcast,
    target_delete,
    target_find_and_modify,
    target_update,
)
from shardwright.sharding.timestamps import unpack_timestamp
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.pipelines import with_stages
from shardwright.wire.rawbson import EMPTY_DOCUMENT, STRING, append, decode_document


async def explain_aggregate(
    operation: Operation, routing: CollectionRouting, explained: ExplainedCommand, shards: Sequence[str]
) -> Reply:
    """Explain an aggregation on a collection.

    Raises:
        StaleRoutingError: a shard refused the versions.
        ShardedViewError: the collection is a view that no single shard can run.
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
    """Explain an ``{aggregate: 1}``."""
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
        said = await explained_by(
            operation, explained.body, explained.verbosity, {operation.context.shards.reachable_of(shards): b""}
        )
        shown = decode_document(explained.body)
        return explain_router_reply(said[0], about_server(operation, said), operation.context.options.address, shown)

    return await unless_missing(part, explanation(), empty_cursor(namespace))


@dataclass(frozen=True, slots=True)
class _Source:
    """The input of an aggregation.

    Attributes:
        versions: the version elements for each targeted shard.
        is_passed_on: whether mongos forwards the aggregation unless it writes, so that the shard explains it.
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
    """Explain a pipeline; the router itself executes ``by_router`` after it.

    Raises:
        JoinNeededError: no shard has all other collections that the pipeline reads.
    """
    shards = tuple(source.versions)
    plan = await plan_aggregation(operation, pipeline, shards)
    if pipeline.first == CHANGE_STREAM or (plan is None and by_router):
        plan = AggregationPlan(pipeline.stages, ())
    if plan is not None:  # no shard receives the whole pipeline to check
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
    merging = "anyShard"  # as for a $merge into a sharded collection, which the shards execute in parallel
    if not (by_router and by_router[-1].name == "$merge"):
        merging = merge_type(plan.merger_part, may_spill=bool(explained.request.get(b"allowDiskUse")))
    return explain_aggregate_reply(said, merging, split, server, command)


async def _check(whole: Operation) -> None:
    """Check the whole aggregation on a mongod; raise its error."""
    target = await merge_target(whole, Pipeline.parse(whole.request))
    await check_pipeline(whole, None if target is None else min(target.shards))


_OF_PLANNER: Final = "error processing query: "

_OF_PARSING: Final = frozenset(
    {ErrorCode.FailedToParse, ErrorCode.TypeMismatch, ErrorCode.InvalidNamespace, 13111, 40413, 40414, 40415}
)
"""Errors in the arguments of the explained command, which mongos itself raises when it parses the command."""


async def explain(operation: Operation) -> Reply:
    """Explains how another command would be executed."""
    explained = ExplainedCommand.parse(operation.request, operation.context.commands.__contains__)
    check_update_stages(explained.request)
    if explained.name == "find":
        refuse_ntoreturn(explained.request)
    if explained.name == "mapReduce":
        return await _explain_map_reduce(operation, explained)
    return await explain_command(operation, explained)


async def explain_command(
    operation: Operation, explained: ExplainedCommand, *, rounds_left: int = ATTEMPTS_MAX
) -> Reply:
    """Explain a command by the explanations of the shards that it targets.

    Args:
        rounds_left: how many more times the namespace may resolve to another view.
    """
    if explained.name == "aggregate":
        check_stages(Pipeline.parse(explained.request))
        if next(iter(explained.request.fields.values()))[0] != STRING:
            return await explain_without_collection(operation, explained)
    namespace = Namespace(explained.request.db, explained.request.collection)
    namespace.check_readable()
    started = perf_counter()

    async def attempt(routing: CollectionRouting) -> Reply:
        shards = _target(routing, explained)
        if explained.name == "aggregate":
            return await explain_aggregate(operation, routing, explained, shards)
        versions = {shard: routing.versions_for(shard) for shard in shards}
        said = await explained_by(
            operation,
            explained.body,
            explained.verbosity,
            versions,
            names_shard=lambda error: (
                not (error.code in _OF_PARSING or (routing.is_sharded and _is_found_by_targeting(error, explained)))
            ),
        )
        milliseconds = int((perf_counter() - started) * 1000)
        server, command = about_server(operation, said), explained.request.document
        if explains_aggregation(said[0].reply):
            return passed_through(said[0], server)
        return explain_reply(explained.stage(len(shards)), explained.verbosity, said, milliseconds, server, command)

    reading = with_routing(operation, str(namespace), attempt)
    try:
        if explained.name == "aggregate" and explained.shown is None:
            return await unless_missing(operation.part(explained.request), reading, empty_cursor(str(namespace)))
        return await reading
    except ShardedViewError as error:
        if explained.is_write:
            raise not_on_view(namespace) from error
        if not rounds_left:
            raise error.error from error
        on_view = explained.on_view(ResolvedView.of(error.body))
        return await explain_command(operation, on_view, rounds_left=rounds_left - 1)


def _is_found_by_targeting(error: CommandError, explained: ExplainedCommand) -> bool:
    """Whether mongos itself raises this error of a shard, as it parses the query to target a sharded collection."""
    has_query = explained.collation is not None or explained.filter not in (b"", EMPTY_DOCUMENT)
    return has_query and error.code != ErrorCode.IndexNotFound and not error.message.startswith(_OF_PLANNER)


async def _explain_map_reduce(operation: Operation, explained: ExplainedCommand) -> Reply:
    """Explain the aggregation that a ``mapReduce`` is translated to."""
    arguments = MapReduce.parse(explained.request)
    await refuse_view(operation.part(explained.request))
    cluster_time = unpack_timestamp(operation.context.clock.time.cluster_time)
    aggregate = explained.as_aggregate(arguments.as_aggregate(explained.request, cluster_time))
    try:
        return await explain_command(operation, replace(aggregate, shown=explained.request.document))
    except CommandError as error:
        raise internal_error(error) from error


def _target(routing: CollectionRouting, explained: ExplainedCommand) -> tuple[str, ...]:
    collation = None
    if explained.collation is not None:
        collation = decode_document(explained.collation)
    if explained.name == "aggregate":
        return shards_for_pipeline(routing, moved_forward(Pipeline.parse(explained.request)), collation)
    if explained.is_write and routing.table is not None and not routing.table.collection.time_series:
        destination = _destination(routing.table, explained, collation)
        if destination is not ALL_SHARDS:
            return (destination,)
    return shards_for_read(routing, explained.filter, collation)


def _destination(
    table: RoutingTable, explained: ExplainedCommand, collation: dict[str, Any] | None
) -> str | Literal[Broadcast.ALL_SHARDS]:
    """Return the shard that the write would be sent to."""
    if explained.name == "findAndModify":
        return target_find_and_modify(explained.filter, collation, table)
    if explained.name == "update":
        found = target_update(UpdateStatement(explained.request.documents(b"updates")[0]), table)
    else:
        found = target_delete(DeleteStatement(explained.request.documents(b"deletes")[0]), table)
    if isinstance(found, CommandError):
        raise found
    return found
