"""``find``: documents that match a filter."""

import math

from bson.timestamp import Timestamp

from shardwright.router.commands.command_registry import command
from shardwright.router.cursors.merged import MergedCursor
from shardwright.router.joins.any_aggregate import aggregate_view
from shardwright.router.operations.cursor_opening import answer_first_batch, open_on_one_shard, open_on_shards
from shardwright.router.operations.missing import check_is_missing, check_query
from shardwright.router.operations.operation import Operation, PassedOn
from shardwright.router.operations.retry import with_routing
from shardwright.router.operations.scatter import forwarded
from shardwright.router.operations.snapshots import snapshot_of
from shardwright.router.placement.collection_routing import CollectionRouting
from shardwright.router.reads.find_arguments import (
    FindArguments,
    allows_partial_results,
    check_for_mongos,
    collation_of,
    filter_of,
    is_immortal,
    patience_seconds,
)
from shardwright.router.reads.merge import ResultMerger, ShareTooSmallError
from shardwright.router.reads.read_concern import at_time
from shardwright.router.reads.targeting import collation_unless_simple, shards_for_read
from shardwright.router.replies.cursor_reply import empty_cursor
from shardwright.router.replies.own_reply import Reply
from shardwright.router.replies.shard_reply import ShardedViewError
from shardwright.wire.errors import CommandError
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor


@command("find", reads=True, api_versions=("1",), begins_in_reactor=True)
async def find(operation: Operation) -> Reply:
    """Returns documents that match a filter, from one shard or merged from several."""
    namespace = operation.namespace
    check_for_mongos(operation.request)
    filter_document = filter_of(operation.request)
    collation = collation_of(operation.request)

    @may_run_in_reactor
    async def attempt(routing: CollectionRouting) -> Reply:
        snapshot = snapshot_of(operation, routing.table)
        time = snapshot.reading
        shards = shards_for_read(routing, filter_document, collation, snapshot.targeting)
        if len(shards) == 1 and not allows_partial_results(operation.request):
            clock = operation.context.clock.time.cluster_time
            body = None if time is None else at_time(operation.request.body, time, clock)
            answer = await open_on_one_shard(
                operation,
                shards[0],
                forwarded(operation, routing.versions_for(shards[0]), body),
                preference=operation.read_preference,
                is_immortal=is_immortal(operation.request),
            )
            if body is None:
                operation.passed_on = PassedOn(routing, shards[0], preference=operation.read_preference)
            return answer
        return await _find_on_shards(operation, routing, shards, time)

    try:
        return await with_routing(operation, namespace, attempt)
    except ShardedViewError as error:
        return await aggregate_view(operation, error)
    except CommandError as error:
        check_is_missing(operation, error)
        await in_own_task()
        await check_query(operation)
        return empty_cursor(namespace)


@may_run_in_reactor
async def _find_on_shards(
    operation: Operation, routing: CollectionRouting, shards: tuple[str, ...], time: Timestamp | None
) -> Reply:
    """Open the cursor on several shards, or on those that can be reached if partial results are allowed, and answer
    with the first merged batch.

    Raises:
        StaleRoutingError: some shard refused the versions.
        CommandError: an argument is wrong, or some shard failed.
    """
    arguments = FindArguments.parse(operation.request)
    share = None
    if time is None and operation.transaction is None:
        share = arguments.share(routing.limit_shares, len(shards))
    if share is not None:
        try:
            return await _find_shares(operation, routing, shards, arguments, share=share)
        except ShareTooSmallError:
            routing.limit_shares.note_exhausted()
    return await _find_shares(operation, routing, shards, arguments, time=time)


@may_run_in_reactor
async def _find_shares(
    operation: Operation,
    routing: CollectionRouting,
    shards: tuple[str, ...],
    arguments: FindArguments,
    *,
    time: Timestamp | None = None,
    share: int | None = None,
) -> Reply:
    """As `_find_on_shards`; each shard returns at most a share of the result if one is given.

    Raises:
        ShareTooSmallError: the shards may have more of the result.
        StaleRoutingError, CommandError: as `_find_on_shards`.
    """
    request = operation.request
    is_collated = collation_unless_simple(routing, collation_of(request)) is not None
    field_order = None if is_collated else arguments.field_order
    body = arguments.body_for_shards(request.body, has_sort_keys=field_order is None, share=share)
    body = at_time(body, time, operation.context.clock.time.cluster_time)
    replies = await open_on_shards(
        operation,
        {shard: forwarded(operation, routing.versions_for(shard), body) for shard in shards},
        preference=operation.read_preference,
        allows_partial_results=arguments.allows_partial_results,
        patience_seconds=patience_seconds(request) if arguments.allows_partial_results else math.inf,
    )
    merger = ResultMerger(
        len(replies), order=field_order or arguments.order, skip=arguments.skip, limit=arguments.limit, share=share
    )
    cursor = MergedCursor(
        operation.sender,
        routing.namespace,
        replies,
        merger,
        allows_partial_results=arguments.allows_partial_results,
        is_partial=len(replies) < len(shards),
        at_cluster_time=time,
    )
    return await answer_first_batch(
        operation,
        cursor,
        arguments.batch_size,
        is_single_batch=arguments.is_single_batch,
        is_immortal=is_immortal(request),
    )
