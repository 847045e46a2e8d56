"""``{aggregate: 1}``: pipelines that read no collection of their own."""

from typing import Final

from shardwright.router.operations.aggregation import run_on_all_shards, run_on_one_shard
from shardwright.router.operations.aggregation_plan import check_out_targets
from shardwright.router.operations.checked_pipeline import check_pipeline
from shardwright.router.operations.local_operations import CURRENT_OP, CurrentOpArguments
from shardwright.router.operations.merge_writes import merge_target
from shardwright.router.operations.nonexistent_namespace import needs_no_database, unless_missing
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import with_database
from shardwright.router.operations.router_documents import (
    LIST_LOCAL_SESSIONS,
    SHARDED_DATA_DISTRIBUTION,
    aggregate_local_sessions,
    aggregate_sharded_data_distribution,
    check_distribution,
)
from shardwright.router.pipelines.stages import COLLECTIONLESS, WRITING, check_stages
from shardwright.router.placement.database_routing import DatabaseRouting
from shardwright.router.reads.aggregate import check_collectionless, check_not_empty
from shardwright.router.replies.cursor_reply import empty_cursor
from shardwright.router.replies.reply_builder import Reply
from shardwright.router.replies.shard_reply import JoinNeededError
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.pipelines.pipeline import Pipeline
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

_DOCUMENTS: Final = "$documents"
_SOURCES: Final = frozenset({*COLLECTIONLESS, CURRENT_OP, SHARDED_DATA_DISTRIBUTION, "$changeStream", "$listCatalog"})
"""Sources that can begin such a pipeline. A mongod refuses others before it looks up the collections they name."""

_RUN_BY_ROUTER: Final = frozenset({_DOCUMENTS, LIST_LOCAL_SESSIONS})
"""Sources that mongos runs itself, so that no shard can write the results."""


async def run_without_collection(operation: Operation) -> Reply:
    """Run ``{aggregate: 1}``.

    Raises:
        JoinNeededError: no shard has all collections that it reads.
        CommandError: ShardNotFound, there is no shard; or a shard's error.
    """
    pipeline = Pipeline.parse(operation.request)
    check_stages(pipeline)
    check_collectionless(operation.request)
    namespace = str(Namespace.collectionless_aggregate(operation.request.db))
    return await unless_missing(operation, _run(operation, pipeline, namespace), empty_cursor(namespace))


def is_run_by_router(pipeline: Pipeline) -> bool:
    """Whether mongos runs a pipeline itself."""
    if pipeline.first != CURRENT_OP:
        return pipeline.first in _RUN_BY_ROUTER
    specification = pipeline.stages[0].specification
    return isinstance(specification, dict) and specification.get("localOps") is True


async def shards_without_collection(operation: Operation, pipeline: Pipeline) -> tuple[str, ...]:
    """Return all shards, after mongos's own checks of an ``{aggregate: 1}``.

    Raises:
        CommandError: NamespaceNotFound, the database does not exist; ShardNotFound, there is no shard; or the pipeline
            is invalid.
    """
    db = operation.request.db
    await check_out_targets(operation, pipeline)
    if not needs_no_database(pipeline):
        await operation.context.routing.database(db)
    check_not_empty(operation.request, pipeline)
    check_distribution(pipeline, db)
    shards = tuple(await operation.context.shards.all_ids())
    if pipeline.first == CURRENT_OP:
        CurrentOpArguments.parse(pipeline.stages[0].specification)
        if db != "admin":
            raise CommandError(
                ErrorCode.InvalidNamespace, "$currentOp must be run against the 'admin' database with {aggregate: 1}"
            )
        return shards
    if not shards:
        raise CommandError(ErrorCode.ShardNotFound, "No shards found")
    if pipeline.first not in _SOURCES:
        if SHARDED_DATA_DISTRIBUTION in pipeline.names:
            raise _needs_collection(pipeline)
        await merge_target(operation, pipeline)
        await check_pipeline(operation)
    if is_run_by_router(pipeline):
        await _check_runs_on_router(operation, pipeline)
    return shards


async def _run(operation: Operation, pipeline: Pipeline, namespace: str) -> Reply:
    """Run an ``{aggregate: 1}`` whose database may be missing."""
    shards = await shards_without_collection(operation, pipeline)
    if pipeline.first == CURRENT_OP:
        return await run_on_all_shards(operation, pipeline, namespace)
    any_shard = operation.context.shards.reachable_of(shards)
    if pipeline.first == LIST_LOCAL_SESSIONS:
        return await aggregate_local_sessions(operation, pipeline, any_shard)
    if pipeline.first == SHARDED_DATA_DISTRIBUTION:
        return await aggregate_sharded_data_distribution(operation, pipeline, shards)
    try:
        return await _run_on_any_shard(operation, pipeline, any_shard)
    except JoinNeededError as error:
        if pipeline.first == _DOCUMENTS:
            raise
        raise _needs_collection(pipeline) from error


def _needs_collection(pipeline: Pipeline) -> CommandError:
    message = f"{{aggregate: 1}} is not valid for '{pipeline.first}'; a collection is required."
    return CommandError(ErrorCode.InvalidNamespace, message)


async def _check_runs_on_router(operation: Operation, pipeline: Pipeline) -> None:
    """Refuse stages that must run on a shard, in a pipeline that must run on the router."""
    of_shards = next((name for name in pipeline.names if name in WRITING), None)
    if of_shards is None:
        return
    await operation.context.routing.database(operation.request.db)
    await check_pipeline(operation)
    message = f"{pipeline.first} must run on mongoS, but cannot :: caused by :: {of_shards} must run on a shard"
    raise CommandError(ErrorCode.IllegalOperation, message)


async def _run_on_any_shard(operation: Operation, pipeline: Pipeline, any_shard: str) -> Reply:
    """Run a pipeline on the primary shard of the database, or on any shard if the database does not exist.

    Each shard refuses stages that cannot run without a collection, as mongos would.

    Raises:
        JoinNeededError: the shard does not have all collections that it reads.
    """

    async def on_primary(routing: DatabaseRouting) -> Reply:
        return await run_on_one_shard(operation, pipeline, routing.primary, routing.element)

    async def anywhere(_: DatabaseRouting) -> Reply:
        return await run_on_one_shard(operation, pipeline, any_shard, b"")

    try:
        return await with_database(operation, operation.request.db, on_primary)
    except CommandError as error:
        if error.code != ErrorCode.NamespaceNotFound:
            raise
    return await with_database(operation, "admin", anywhere)
