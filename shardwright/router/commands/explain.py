"""``explain``: how a command would be executed, in the router and on the shards."""

import socket
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, Final

from shardwright.router.commands.command_registry import COMMANDS, command
from shardwright.router.commands.map_reduce import refuse_view
from shardwright.router.context.version import MONGODB_VERSION
from shardwright.router.operations.aggregation_plan import AggregationPlan, plan_aggregation
from shardwright.router.operations.foreign_collections import NO_FOREIGN_COLLECTIONS, foreign_collections
from shardwright.router.operations.merge_writes import sharded_target
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import ATTEMPTS_MAX, with_routing
from shardwright.router.operations.scatter import scatter
from shardwright.router.pipelines.commands import NEEDS_MERGE
from shardwright.router.pipelines.explained_split import explained_split
from shardwright.router.pipelines.internal_stages import check_stages
from shardwright.router.pipelines.targeting import shards_for_pipeline
from shardwright.router.placement.collection_routing import CollectionRouting
from shardwright.router.reads.aggregate import with_stages
from shardwright.router.reads.explain_reply import ShardExplain, explain_aggregate_reply, explain_reply
from shardwright.router.reads.explained import ExplainedCommand, wrapped
from shardwright.router.reads.map_reduce import MapReduce, internal_error
from shardwright.router.reads.pipeline import Pipeline, Stage
from shardwright.router.reads.raw_elements import raw_elements
from shardwright.router.reads.resolved_view import ResolvedView, not_on_view
from shardwright.router.reads.targeting import shards_for_read
from shardwright.router.replies.own_reply import Reply
from shardwright.router.replies.shard_reply import ShardedViewError
from shardwright.router.replies.worst_error import raise_worst
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.timestamps import unpack_timestamp
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import append, decode_document

_OUTER_FIELDS: Final = (b"lsid", b"$readPreference", b"readConcern", b"comment", b"maxTimeMS", b"$clusterTime", b"$db")
"""The fields of the client's command that are copied to a shard's ``explain``."""


@command("explain", reads=True, api_versions=("1",))
async def explain(operation: Operation) -> Reply:
    """Explains how another command would be executed."""
    explained = ExplainedCommand.parse(operation.request, COMMANDS.__contains__)
    if explained.name == "mapReduce":
        return await _explain_map_reduce(operation, explained)
    return await explain_command(operation, explained)


async def explain_command(
    operation: Operation, explained: ExplainedCommand, *, rounds_left: int = ATTEMPTS_MAX
) -> Reply:
    """Answer with the explanations of the shards that the command would go to.

    Args:
        operation: the ``explain``.
        explained: the command inside.
        rounds_left: how often the namespace may still turn out to be a view.

    Raises:
        CommandError: the command is wrong, or some shard failed.
    """
    namespace = Namespace(explained.request.db, explained.request.collection)
    namespace.check_readable()
    started = perf_counter()

    async def attempt(routing: CollectionRouting) -> Reply:
        shards = _target(routing, explained)
        if explained.name == "aggregate":
            return await _explain_aggregate(operation, routing, explained, shards)
        said = await _ask(operation, routing, explained.body_for(len(shards)), explained.verbosity, shards)
        milliseconds = int((perf_counter() - started) * 1000)
        server = _about_server(operation, explained, said)
        return explain_reply(explained.stage(len(shards)), explained.verbosity, said, milliseconds, server)

    try:
        return await with_routing(operation, str(namespace), attempt)
    except ShardedViewError as error:
        if explained.is_write:
            raise not_on_view(namespace) from error
        if not rounds_left:
            raise error.error from error
        on_view = explained.on_view(ResolvedView.of(error.body))
        return await explain_command(operation, on_view, rounds_left=rounds_left - 1)


async def _explain_map_reduce(operation: Operation, explained: ExplainedCommand) -> Reply:
    """Explain the aggregation that a ``mapReduce`` is run as."""
    arguments = MapReduce.parse(explained.request)
    await refuse_view(Operation(operation.context, operation.client, explained.request))
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
        return shards_for_pipeline(routing, Pipeline.parse(explained.request), collation)
    shards = shards_for_read(routing, explained.filter, collation)
    if explained.name == "findAndModify" and len(shards) > 1:
        raise CommandError(ErrorCode.ShardKeyNotFound, "Query for sharded findAndModify must contain the shard key")
    return shards


async def _explain_aggregate(
    operation: Operation, routing: CollectionRouting, explained: ExplainedCommand, shards: tuple[str, ...]
) -> Reply:
    pipeline = Pipeline.parse(explained.request)
    check_stages(pipeline)
    written: tuple[Stage, ...] = ()
    if await sharded_target(operation, pipeline) is not None:
        pipeline, written = Pipeline(pipeline.stages[:-1]), pipeline.stages[-1:]  # which the router executes itself
    plan = await plan_aggregation(operation, pipeline, shards)
    if plan is None and written:
        plan = AggregationPlan(pipeline.stages, ())
    body, foreign = explained.body, NO_FOREIGN_COLLECTIONS
    if plan is None:
        foreign = await foreign_collections(operation, pipeline, shards[0], operation.read_preference)
    else:
        body = with_stages(body, tuple(stage.raw for stage in plan.shards_part))
        if plan.needs_merge:
            body = append(body, NEEDS_MERGE)
    with foreign.blamed():
        said = await _ask(operation, routing, body, explained.verbosity, shards, foreign.version_elements)
    server = _about_server(operation, explained, said)
    if plan is None:
        return explain_aggregate_reply(said, None, None, server)
    split = explained_split(plan.shards_part, (*plan.merger_part, *written), routing.namespace, plan.sort)
    return explain_aggregate_reply(said, plan.merge_type(routing.primary), split, server)


async def _ask(
    operation: Operation,
    routing: CollectionRouting,
    inner: bytes,
    verbosity: str,
    shards: Sequence[str],
    elements: bytes = b"",
) -> list[ShardExplain]:
    """The shards' explanations of a command.

    Args:
        operation: the ``explain``.
        routing: of the inner command's collection.
        inner: the inner command.
        verbosity: the level of detail.
        shards: the shards to ask.
        elements: raw elements for all of them.

    Raises:
        StaleRoutingError: some shard refused the versions.
        CommandError: some shard failed.
    """
    request = operation.request
    outer = wrapped(inner, verbosity, raw_elements(request, _OUTER_FIELDS))
    frames = {
        shard: op_msg(append(outer, routing.versions_for(shard) + elements), request_id=request.message.request_id)
        for shard in shards
    }
    replies = await scatter(operation, frames, preference=operation.read_preference, may_repeat=True)
    raise_worst(replies)
    registry = operation.context.shards
    return [
        ShardExplain(
            reply.shard_id, (await registry.get(reply.shard_id)).connection_string, reply.address, reply.document
        )
        for reply in replies
    ]


def _about_server(operation: Operation, explained: ExplainedCommand, shards: Sequence[ShardExplain]) -> dict[str, Any]:
    """The fields about the router itself. The parameters limit the shards' stages, so they are the shards'."""
    host, _, port = operation.context.options.address.rpartition(":")
    return {
        "serverInfo": {
            "host": host or socket.gethostname(),
            "port": int(port) if port.isdigit() else 0,
            "version": MONGODB_VERSION,
            "gitVersion": "unknown",
        },
        **({"serverParameters": shards[0].reply["serverParameters"]} if "serverParameters" in shards[0].reply else {}),
        "command": explained.shown or explained.request.document,
    }
