"""``explain``: the execution plan of a command, in the router and on the shards.

For an aggregation it shows ``shardsPart`` and ``mergerPart``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, Final, Literal

from shardwright.router.change_streams.specification import CHANGE_STREAM
from shardwright.router.commands.map_reduce import MapReduce, internal_error, refuse_view
from shardwright.router.context.options import MONGODB_VERSION
from shardwright.router.lookup.aggregate import split_at_join
from shardwright.router.operations.aggregation_plan import AggregationPlan, SplitPlan, complete, split
from shardwright.router.operations.checked_pipeline import check_pipeline
from shardwright.router.operations.collectionless import is_run_by_router, shards_without_collection
from shardwright.router.operations.involved_collections import NO_FOREIGN_COLLECTIONS, foreign_collections, merge_target
from shardwright.router.operations.nonexistent_namespace import unless_missing
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import ATTEMPTS_MAX, with_routing
from shardwright.router.operations.scatter import scatter
from shardwright.router.pipelines.commands import NEEDS_MERGE, shards_for_pipeline
from shardwright.router.pipelines.stages import WRITING, check_stages, check_update_stages
from shardwright.router.placement.routing_info import CollectionRouting, shards_for_read
from shardwright.router.reads.explain import (
    ExplainedCommand,
    ShardExplain,
    explain_aggregate_reply,
    explain_reply,
    explain_router_reply,
    explains_aggregation,
    passed_through,
    wrapped,
)
from shardwright.router.reads.find_arguments import check_explained
from shardwright.router.reads.views import ResolvedView, not_on_view
from shardwright.router.replies.cursor_reply import empty_cursor
from shardwright.router.replies.reply_builder import Reply
from shardwright.router.replies.shard_reply import JoinNeededError, ShardedViewError, answer_in, raise_worst
from shardwright.sharding.cluster_time import unpack_timestamp
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.pipelines.pipeline import Pipeline
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
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import CommandError
from shardwright.wire.host_and_port import HostAndPort
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import EMPTY_DOCUMENT, STRING, append, decode_document
from shardwright.wire.request import raw_elements, with_stages


async def explain_aggregate(
    operation: Operation, routing: CollectionRouting, explained: ExplainedCommand, shards: Sequence[str]
) -> Reply:
    """Explain an aggregation on a collection.

    Raises:
        StaleRoutingError: a shard refused the versions.
        ShardedViewError: the collection is a view that no single shard can run.
    """
    pipeline = moved_forward(Pipeline.parse(explained.request))
    versions = {shard: routing.versions_for(shard) for shard in shards}
    plan = AggregationPlan(operation.part(explained.request), pipeline, pipeline, routing.namespace, routing, versions)
    is_passed_on = not routing.is_sharded
    try:
        return await _explain(operation, await complete(plan), explained, is_passed_on=is_passed_on)
    except JoinNeededError as error:
        before, joined = split_at_join(plan.pipeline, operation.request.db, error.elsewhere)
        plan.pipeline = plan.ordered = Pipeline(before)
        plan.by_router = joined + plan.by_router
        await split(plan)
        return await _explain(operation, plan, explained, is_passed_on=is_passed_on)


async def explain_without_collection(operation: Operation, explained: ExplainedCommand) -> Reply:
    """Explain an ``{aggregate: 1}``."""
    part = operation.part(explained.request)
    pipeline = Pipeline.parse(explained.request)
    namespace = str(Namespace.collectionless_aggregate(explained.request.db))

    async def explanation() -> Reply:
        shards = await shards_without_collection(part, pipeline)
        if not is_run_by_router(pipeline):
            await check_pipeline(part)
            ordered = moved_forward(pipeline)
            plan = AggregationPlan(part, ordered, ordered, namespace, versions=dict.fromkeys(shards, b""))
            await split(plan)
            return await _explain(operation, plan, explained, is_passed_on=False)
        said = await _explained_by(
            operation, explained.body, explained.verbosity, {operation.context.shards.reachable_of(shards): b""}
        )
        shown = decode_document(explained.body)
        return explain_router_reply(said[0], _about_server(operation, said), operation.context.options.address, shown)

    return await unless_missing(part, explanation(), empty_cursor(namespace))


async def _explain(
    operation: Operation, plan: AggregationPlan, explained: ExplainedCommand, *, is_passed_on: bool
) -> Reply:
    """Explain a pipeline by its plan and the explanations of the shards.

    Args:
        is_passed_on: whether mongos forwards the aggregation unless it writes, so that the shard explains it.

    Raises:
        JoinNeededError: no shard has all other collections that the pipeline reads.
    """
    pipeline, versions = plan.pipeline, plan.versions or {}
    if pipeline.first == CHANGE_STREAM or (plan.split is None and plan.by_router):
        plan.split = SplitPlan(pipeline.stages, ())
    body, foreign = explained.body, NO_FOREIGN_COLLECTIONS
    if plan.split is not None:
        await _check(plan.operation)  # no shard receives the whole pipeline to check
        pipeline = Pipeline(plan.split.shards_part)
        body = with_stages(body, tuple(stage.raw for stage in pipeline.stages))
        if plan.split.needs_merge:
            body = append(body, NEEDS_MERGE)
    if len(versions) == 1:
        foreign = await foreign_collections(operation, pipeline, plan.shards[0], operation.read_preference)
    with foreign.blamed():
        elements = {shard: each + foreign.version_elements for shard, each in versions.items()}
        said = await _explained_by(operation, body, explained.verbosity, elements)
    server = _about_server(operation, said)
    if plan.split is None and is_passed_on and not WRITING.intersection(pipeline.names):
        return passed_through(said[0], server, explained.shown)
    merging, described = (None, None) if plan.split is None else plan.describe()
    command = explained.shown or decode_document(explained.body)
    return explain_aggregate_reply(said, merging, described, server, command)


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
        check_explained(explained.request)
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
        said = await _explained_by(
            operation,
            explained.body,
            explained.verbosity,
            versions,
            names_shard=lambda error: (
                not (error.code in _OF_PARSING or (routing.is_sharded and _is_found_by_targeting(error, explained)))
            ),
        )
        milliseconds = int((perf_counter() - started) * 1000)
        server, command = _about_server(operation, said), explained.request.document
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
        try:
            on_view = explained.on_view(ResolvedView.of(error.body))
        except CommandError as refusal:
            if refusal.code in _OF_PARSING:
                raise
            # Mongos receives it from the shard.
            view = await operation.context.routing.find(str(namespace))
            raise refusal if view is None else _failed_on(view.primary, refusal) from error
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


_OUTER_FIELDS: Final = (b"lsid", b"$readPreference", b"readConcern", b"comment", b"maxTimeMS", b"$clusterTime", b"$db")
"""Fields of the client's command that are copied to a shard's ``explain``."""


def _as_it_is(_error: CommandError) -> bool:
    return False


async def _explained_by(
    operation: Operation,
    inner: bytes,
    verbosity: str,
    elements: Mapping[str, bytes],
    *,
    names_shard: Callable[[CommandError], bool] = _as_it_is,
) -> list[ShardExplain]:
    """Collect the shards' explanations of a command.

    Args:
        elements: the shards to query, each with raw elements to add, such as the versions.
        names_shard: whether the client's error names the shard of this error.

    Raises:
        StaleRoutingError: a shard refused the versions.
    """
    request = operation.request
    outer = wrapped(inner, verbosity, raw_elements(request, _OUTER_FIELDS))
    frames = {
        shard: op_msg(append(outer, each), request_id=request.message.request_id) for shard, each in elements.items()
    }
    replies = await scatter(operation, frames, preference=operation.read_preference, may_repeat=True)
    try:
        raise_worst(replies)
    except CommandError as error:
        shard = next((reply.shard_id for reply in replies if reply.error is error), None)
        if shard is None or has_category(error.code, Category.NETWORK) or not names_shard(error):
            raise
        raise _failed_on(shard, error) from error
    registry = operation.context.shards
    return [
        ShardExplain(
            reply.shard_id,
            (await registry.get(reply.shard_id)).connection_string,
            reply.address,
            answer_in(reply.document),
        )
        for reply in replies
    ]


def _failed_on(shard: str, error: CommandError) -> CommandError:
    """Return the client's error for an error of a shard that explains a command."""
    message = f"Explain command on shard {shard} failed :: caused by :: {error.message}"
    return CommandError(error.code, message, labels=error.labels, extra=error.extra)


def _about_server(operation: Operation, shards: Sequence[ShardExplain]) -> dict[str, Any]:
    """Return the fields about the server; the parameters are the shards', because they limit the shards' stages."""
    own = HostAndPort.parse(operation.context.options.address)
    return {
        "serverInfo": {
            "host": own.host,
            "port": own.port,
            "version": MONGODB_VERSION,
            "gitVersion": "unknown",
        },
        **({"serverParameters": shards[0].reply["serverParameters"]} if "serverParameters" in shards[0].reply else {}),
    }
