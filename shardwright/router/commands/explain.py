"""``explain``: how a command would be executed, in the router and on the shards."""

from dataclasses import replace
from time import perf_counter

from shardwright.router.commands.command_registry import COMMANDS, command
from shardwright.router.commands.explained_aggregate import explain_aggregate, explain_without_collection
from shardwright.router.commands.map_reduce import refuse_view
from shardwright.router.operations.explained_shards import about_server, explained_by
from shardwright.router.operations.missing import unless_missing
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import ATTEMPTS_MAX, with_routing
from shardwright.router.pipelines.internal_stages import check_stages, check_update_stages
from shardwright.router.pipelines.moved_forward import moved_forward
from shardwright.router.pipelines.targeting import shards_for_pipeline
from shardwright.router.placement.collection_routing import CollectionRouting
from shardwright.router.reads.explain_reply import explain_reply, explains_aggregation, passed_through
from shardwright.router.reads.explained import ExplainedCommand
from shardwright.router.reads.find_arguments import refuse_ntoreturn
from shardwright.router.reads.map_reduce import MapReduce, internal_error
from shardwright.router.reads.pipeline import Pipeline
from shardwright.router.reads.resolved_view import ResolvedView, not_on_view
from shardwright.router.reads.targeting import shards_for_read
from shardwright.router.replies.cursor_reply import empty_cursor
from shardwright.router.replies.own_reply import Reply
from shardwright.router.replies.shard_reply import ShardedViewError
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.timestamps import unpack_timestamp
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import STRING, decode_document


@command("explain", reads=True, api_versions=("1",))
async def explain(operation: Operation) -> Reply:
    """Explains how another command would be executed."""
    explained = ExplainedCommand.parse(operation.request, COMMANDS.__contains__)
    check_update_stages(explained.request)
    if explained.name == "find":
        refuse_ntoreturn(explained.request)
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
        said = await explained_by(operation, explained.body, explained.verbosity, versions)
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


async def _explain_map_reduce(operation: Operation, explained: ExplainedCommand) -> Reply:
    """Explain the aggregation that a ``mapReduce`` is run as."""
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
    shards = shards_for_read(routing, explained.filter, collation)
    if explained.name == "findAndModify" and len(shards) > 1:
        raise CommandError(ErrorCode.ShardKeyNotFound, "Query for sharded findAndModify must contain the shard key")
    return shards
