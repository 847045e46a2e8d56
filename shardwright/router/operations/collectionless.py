"""``{aggregate: 1}``: pipelines that read no collection of their own."""

from typing import Final

from shardwright.router.operations.aggregation import run_on_all_shards, run_on_one_shard
from shardwright.router.operations.checked_pipeline import check_pipeline
from shardwright.router.operations.current_op_arguments import CURRENT_OP, CurrentOpArguments
from shardwright.router.operations.local_sessions import LIST_LOCAL_SESSIONS, aggregate_local_sessions
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import with_database
from shardwright.router.operations.sharded_data_distribution import (
    SHARDED_DATA_DISTRIBUTION,
    aggregate_sharded_data_distribution,
)
from shardwright.router.pipelines.internal_stages import check_stages
from shardwright.router.pipelines.stages import COLLECTIONLESS, WRITING
from shardwright.router.placement.database_routing import DatabaseRouting
from shardwright.router.reads.collectionless import check_collectionless
from shardwright.router.reads.pipeline import Pipeline
from shardwright.router.replies.own_reply import Reply
from shardwright.router.replies.shard_reply import JoinNeededError
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

_DOCUMENTS: Final = "$documents"
_SOURCES: Final = frozenset({*COLLECTIONLESS, CURRENT_OP, SHARDED_DATA_DISTRIBUTION, "$changeStream", "$listCatalog"})
"""What can begin such a pipeline. A mongod refuses others before it looks for the collections that they name."""


async def run_without_collection(operation: Operation) -> Reply:
    """Run ``{aggregate: 1}``.

    Raises:
        JoinNeededError: no shard has all collections that it reads.
        CommandError: ShardNotFound, there is none; or what a shard answers.
    """
    pipeline = Pipeline.parse(operation.request)
    check_stages(pipeline)
    check_collectionless(operation.request, pipeline)
    db = operation.request.db
    namespace = str(Namespace.collectionless_aggregate(db))
    shards = await operation.context.shards.all_ids()
    if pipeline.first == CURRENT_OP:
        CurrentOpArguments.parse(pipeline.stages[0].specification)
        if db != "admin":
            raise CommandError(
                ErrorCode.InvalidNamespace, "$currentOp must be run against the 'admin' database with {aggregate: 1}"
            )
        return await run_on_all_shards(operation, pipeline, namespace)
    if not shards:
        raise CommandError(ErrorCode.ShardNotFound, "No shards found")
    if pipeline.first not in _SOURCES:
        await check_pipeline(operation)
    if pipeline.first == LIST_LOCAL_SESSIONS:
        _check_writes_nothing(pipeline)
        return await aggregate_local_sessions(operation, pipeline, shards[0])
    if pipeline.first == SHARDED_DATA_DISTRIBUTION:
        return await aggregate_sharded_data_distribution(operation, pipeline, shards)
    try:
        return await _run_on_any_shard(operation, pipeline, shards[0])
    except JoinNeededError as error:
        if pipeline.first == _DOCUMENTS:
            raise
        raise CommandError(
            ErrorCode.InvalidNamespace,
            f"{{aggregate: 1}} is not valid for '{pipeline.first}'; a collection is required.",
        ) from error


def _check_writes_nothing(pipeline: Pipeline) -> None:
    """Refuse to write what the router itself lists.

    Raises:
        CommandError: IllegalOperation, a stage writes.
    """
    for name in pipeline.names:
        if name in WRITING:
            raise CommandError(
                ErrorCode.IllegalOperation,
                f"{LIST_LOCAL_SESSIONS} must run on mongoS, but cannot :: caused by :: {name} must run on a shard",
            )


async def _run_on_any_shard(operation: Operation, pipeline: Pipeline, any_shard: str) -> Reply:
    """Run a pipeline on the primary shard of the database, or on any shard if the database does not exist.

    All of them refuse what cannot run without a collection, as mongos would.

    Raises:
        JoinNeededError: the shard does not have all collections that it reads.
        CommandError: what the shard answers.
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
