"""Reads of views that no shard can run alone: they become aggregations on the collection beneath the view."""

from shardwright.router.operations.aggregation import run_aggregate
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import ATTEMPTS_MAX
from shardwright.router.reads.resolved_view import ResolvedView
from shardwright.router.replies.own_reply import Reply
from shardwright.router.replies.shard_reply import ShardedViewError
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor


@may_run_in_reactor
async def aggregate_view(operation: Operation, error: ShardedViewError) -> Reply:
    """Answer a read of a view by an aggregation on the collection beneath the view.

    Args:
        operation: the read.
        error: the answer of the shard that could not run it alone.

    Raises:
        CommandError: the read cannot be an aggregation, or it failed.
    """
    await in_own_task()
    request = operation.request
    for _ in range(ATTEMPTS_MAX):
        request = ResolvedView.of(error.body).expand(request)
        expanded = Operation(operation.context, operation.client, request)
        try:
            return await run_aggregate(expanded, operation.namespace)
        except ShardedViewError as again:
            error = again  # its collection has become a view in the meantime
        finally:
            operation.targeted = expanded.targeted
            operation.retries += expanded.retries
    raise error.error
