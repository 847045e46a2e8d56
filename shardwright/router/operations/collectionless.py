"""``{aggregate: 1}``: pipelines that read no collection of their own."""

from shardwright.router.operations.aggregation import run_on_all_shards, run_on_one_shard
from shardwright.router.operations.current_op_arguments import CURRENT_OP, CurrentOpArguments
from shardwright.router.operations.local_sessions import LIST_LOCAL_SESSIONS, aggregate_local_sessions
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import with_database
from shardwright.router.pipelines.internal_stages import check_stages
from shardwright.router.placement.database_routing import DatabaseRouting
from shardwright.router.reads.collectionless import check_collectionless
from shardwright.router.reads.pipeline import Pipeline
from shardwright.router.replies.own_reply import Reply
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


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
    if pipeline.first == LIST_LOCAL_SESSIONS:
        return await aggregate_local_sessions(operation, pipeline, shards[0])

    # Any shard refuses all other stages, as mongos would.
    async def on_primary(routing: DatabaseRouting) -> Reply:
        return await run_on_one_shard(operation, pipeline, routing.primary, routing.element)

    async def anywhere(_: DatabaseRouting) -> Reply:
        return await run_on_one_shard(operation, pipeline, shards[0], b"")

    try:
        return await with_database(operation, db, on_primary)
    except CommandError as error:
        if error.code != ErrorCode.NamespaceNotFound:
            raise
    return await with_database(operation, "admin", anywhere)
