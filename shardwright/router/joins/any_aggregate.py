"""Aggregations wherever their data is: on shards, on the collection beneath a view, or joined by the router."""

from functools import partial

from shardwright.router.joins.joined_aggregate import answer_joined
from shardwright.router.joins.written_results import TargetShardedError
from shardwright.router.operations.aggregation import run_aggregate
from shardwright.router.operations.checked_pipeline import check_pipeline
from shardwright.router.operations.collectionless import run_without_collection
from shardwright.router.operations.merge_writes import merge_into, merge_target
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import ATTEMPTS_MAX
from shardwright.router.reads.pipeline import Pipeline
from shardwright.router.reads.resolved_view import ResolvedView
from shardwright.router.replies.own_reply import Reply
from shardwright.router.replies.shard_reply import JoinNeededError, ShardedViewError
from shardwright.wire.rawbson import STRING
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor


async def aggregate_anywhere(operation: Operation, cursor_namespace: str, *, is_checked: bool = False) -> Reply:
    """The reply to an aggregation.

    Args:
        operation: the aggregation.
        cursor_namespace: of its cursor: the collection's, or the view's.
        is_checked: a mongod has found the pipeline to be right, as a part of another one.

    Raises:
        CommandError: it failed.
    """
    try:
        return await _run_or_join(operation, cursor_namespace, is_checked=is_checked)
    except ShardedViewError as error:
        return await aggregate_view(operation, error, cursor_namespace, is_checked=is_checked)


@may_run_in_reactor
async def aggregate_view(
    operation: Operation, error: ShardedViewError, cursor_namespace: str | None = None, *, is_checked: bool = False
) -> Reply:
    """Answer a read of a view by an aggregation on the collection beneath the view.

    Args:
        operation: the read.
        error: the answer of the shard that could not run it alone.
        cursor_namespace: of the cursor; None for the view's.
        is_checked: as for `aggregate_anywhere`.

    Raises:
        CommandError: the read cannot be an aggregation, or it failed.
    """
    await in_own_task()
    request = operation.request
    for _ in range(ATTEMPTS_MAX):
        request = ResolvedView.of(error.body).expand(request)
        expanded = operation.part(request)
        try:
            return await _run_or_join(expanded, cursor_namespace or operation.namespace, is_checked=is_checked)
        except ShardedViewError as again:
            error = again  # its collection has become a view in the meantime
        finally:
            operation.note_part(expanded)
    raise error.error


async def _run_or_join(operation: Operation, cursor_namespace: str, *, is_checked: bool) -> Reply:
    """As `aggregate_anywhere`, but not on views.

    Raises:
        ShardedViewError: it is a view that no shard can run alone.
        CommandError: it failed.
    """
    try:
        if next(iter(operation.request.fields.values()))[0] != STRING:
            return await run_without_collection(operation)
        return await run_aggregate(operation, cursor_namespace)
    except JoinNeededError as error:
        return await _join(operation, cursor_namespace, error, is_checked=is_checked)


@may_run_in_reactor
async def _join(operation: Operation, cursor_namespace: str, error: JoinNeededError, *, is_checked: bool) -> Reply:
    """Answer an aggregation that no shard can run."""
    await in_own_task()
    pipeline = Pipeline.parse(operation.request)
    run_part = partial(aggregate_anywhere, is_checked=True)
    for _ in range(ATTEMPTS_MAX):
        target = await merge_target(operation, pipeline)
        if target is not None and target.is_sharded:
            return await merge_into(operation, pipeline, target, cursor_namespace, run_part)
        if not is_checked:
            await check_pipeline(operation)
            is_checked = True
        try:
            return await answer_joined(operation, cursor_namespace, error.elsewhere, run_part)
        except TargetShardedError:
            operation.retries += 1
    raise error
