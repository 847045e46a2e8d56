"""``{aggregate: 1}``: pipelines that read no collection of their own."""

from typing import Final

from shardwright.router.exec.shard import ShardStage
from shardwright.router.exec.stage import MissingStage
from shardwright.router.operations.aggregation import run_on_all_shards, run_on_one_shard
from shardwright.router.operations.checked_pipeline import check_pipeline
from shardwright.router.operations.cursor_opening import OpenedRead
from shardwright.router.operations.involved_collections import check_out_targets, merge_target
from shardwright.router.operations.local_operations import CURRENT_OP, CurrentOpArguments
from shardwright.router.operations.nonexistent_namespace import needs_no_database, reads_others, unless_missing
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import with_database
from shardwright.router.operations.router_documents import (
    LIST_LOCAL_SESSIONS,
    SHARDED_DATA_DISTRIBUTION,
    aggregate_local_sessions,
    aggregate_sharded_data_distribution,
    check_distribution,
)
from shardwright.router.pipelines.commands import obstacle_on_router
from shardwright.router.pipelines.stages import COLLECTIONLESS, check_stages
from shardwright.router.placement.routing_info import DatabaseRouting
from shardwright.router.reads.aggregations import check_collectionless, check_not_empty
from shardwright.router.replies.shard_reply import JoinNeededError
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.pipelines.pipeline import Pipeline
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

_DOCUMENTS: Final = "$documents"
_SOURCES: Final = frozenset({*COLLECTIONLESS, CURRENT_OP, SHARDED_DATA_DISTRIBUTION, "$changeStream", "$listCatalog"})
"""Sources that can begin such a pipeline. A mongod refuses others before it looks up the collections they name."""

_NAMES_CURRENT_OP: Final = CURRENT_OP.encode() + b"\0"

_RUN_BY_ROUTER: Final = frozenset({_DOCUMENTS, LIST_LOCAL_SESSIONS})
"""Sources that mongos runs itself, so that no shard can write the results."""

_FOUND_LATER: Final = frozenset({40603, ErrorCode.OptionNotSupportedOnView})
"""Errors that mongos would meet only on a shard: ``$geoNear`` is not the first stage, or a view's collation differs."""


async def run_without_collection(operation: Operation, *, is_nested: bool = False) -> OpenedRead:
    """Open an ``{aggregate: 1}``.

    Args:
        is_nested: whether it is a part of another aggregation.

    Raises:
        JoinNeededError: no shard has all collections that it reads.
        CommandError: ShardNotFound, there is no shard; or a shard's error.
    """
    pipeline = Pipeline.parse(operation.request)
    check_stages(pipeline)
    check_collectionless(operation.request)
    namespace = str(Namespace.collectionless_aggregate(operation.request.db))
    running = _run(operation, pipeline, namespace, is_nested=is_nested)
    read = await unless_missing(operation, running, OpenedRead(operation, MissingStage(), namespace))
    if is_run_by_router(pipeline) and isinstance(read.root, ShardStage):
        read.root.raise_for_error()
    return read


def is_run_by_router(pipeline: Pipeline) -> bool:
    """Whether mongos runs a pipeline itself."""
    if pipeline.first != CURRENT_OP:
        return pipeline.first in _RUN_BY_ROUTER
    specification = pipeline.stages[0].specification
    return isinstance(specification, dict) and specification.get("localOps") is True


async def shards_without_collection(
    operation: Operation, pipeline: Pipeline, *, is_nested: bool = False
) -> tuple[str, ...]:
    """Return all shards, after mongos's own checks of an ``{aggregate: 1}``.

    Args:
        is_nested: whether it is a part of another aggregation, which a shard could run.

    Raises:
        CommandError: NamespaceNotFound, the database does not exist; ShardNotFound, there is no shard; or the pipeline
            is invalid.
    """
    db = operation.request.db
    await check_out_targets(operation, pipeline)
    if not needs_no_database(pipeline) or reads_others(pipeline, db):
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
        if any(_NAMES_CURRENT_OP in stage.raw for stage in pipeline.stages[1:]):
            await check_pipeline(operation)  # the part after the shards' reads a collection, which has other errors
        return shards
    if not shards:
        raise CommandError(ErrorCode.ShardNotFound, "No shards found")
    if pipeline.first not in _SOURCES:
        if SHARDED_DATA_DISTRIBUTION in pipeline.names:
            raise _needs_collection(pipeline)
        await merge_target(operation, pipeline)
        await check_pipeline(operation)
    if is_run_by_router(pipeline) and not is_nested:
        await _check_runs_on_router(operation, pipeline)
    return shards


async def _run(operation: Operation, pipeline: Pipeline, namespace: str, *, is_nested: bool) -> OpenedRead:
    """Run an ``{aggregate: 1}`` whose database may be missing."""
    shards = await shards_without_collection(operation, pipeline, is_nested=is_nested)
    if pipeline.first == CURRENT_OP:
        return await run_on_all_shards(operation, pipeline, namespace)
    any_shard = operation.context.shards.reachable_of(shards)
    if pipeline.first == LIST_LOCAL_SESSIONS:
        return await aggregate_local_sessions(operation, pipeline, any_shard)
    if pipeline.first == SHARDED_DATA_DISTRIBUTION:
        return await aggregate_sharded_data_distribution(operation, pipeline, shards)
    try:
        return await _run_on_any_shard(operation, pipeline, any_shard, namespace)
    except JoinNeededError as error:
        if pipeline.first == _DOCUMENTS:
            raise
        raise _needs_collection(pipeline) from error


def _needs_collection(pipeline: Pipeline) -> CommandError:
    message = f"{{aggregate: 1}} is not valid for '{pipeline.first}'; a collection is required."
    return CommandError(ErrorCode.InvalidNamespace, message)


async def _check_runs_on_router(operation: Operation, pipeline: Pipeline) -> None:
    """Refuse stages that must run on a shard, in a pipeline that must run on the router."""
    db, may_spill = operation.request.db, bool(operation.argument(b"allowDiskUse"))
    sharded = await _sharded(operation, pipeline)
    obstacles = (obstacle_on_router(stage, db, sharded, may_spill=may_spill) for stage in pipeline.stages[1:])
    try:
        obstacle = next((each for each in obstacles if each is not None), None)
    except (AttributeError, TypeError, ValueError):
        obstacle = None  # a stage is malformed: mongod reports it
    if obstacle is None:
        return
    try:
        await check_pipeline(operation)
    except CommandError as error:
        if error.code not in _FOUND_LATER:
            raise
    message = f"{pipeline.first} must run on mongoS, but cannot :: caused by :: {obstacle}"
    raise CommandError(ErrorCode.IllegalOperation, message)


async def _sharded(operation: Operation, pipeline: Pipeline) -> frozenset[str]:
    """Return the names of the sharded collections that a pipeline reads, according to the catalog."""
    cache, found = operation.context.routing, set()
    for namespace in pipeline.involved_namespaces(operation.request.db):
        routing = await cache.find(namespace)
        if routing is not None and not routing.is_sharded:
            routing = await cache.latest_if_readable(routing)  # no shard would report that it is sharded now
        if routing is not None and routing.is_sharded:
            found.add(namespace)
    return frozenset(found)


async def _run_on_any_shard(operation: Operation, pipeline: Pipeline, any_shard: str, namespace: str) -> OpenedRead:
    """Run a pipeline on the primary shard of the database, or on any shard if the database does not exist.

    Each shard refuses stages that cannot run without a collection, as mongos would.

    Raises:
        JoinNeededError: the shard does not have all collections that it reads.
    """

    async def on_primary(routing: DatabaseRouting) -> OpenedRead:
        return await run_on_one_shard(operation, pipeline, routing.primary, routing.element, namespace)

    async def anywhere(_: DatabaseRouting) -> OpenedRead:
        return await run_on_one_shard(operation, pipeline, any_shard, b"", namespace)

    try:
        return await with_database(operation, operation.request.db, on_primary)
    except CommandError as error:
        if error.code != ErrorCode.NamespaceNotFound:
            raise
    return await with_database(operation, "admin", anywhere)
