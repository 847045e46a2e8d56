"""Aggregations that name collections which the shard that would run them does not have.

The stages before the first that names such a collection run as usual. The router reads their results, and runs the
other stages on them (`stages`).
"""

from collections.abc import Mapping
from typing import Any, Final

from bson.timestamp import Timestamp

from shardwright.router.joins.environment import AggregateRunner, JoinEnvironment, stream_of
from shardwright.router.joins.stages import run_stages
from shardwright.router.joins.stream_cursor import StreamCursor
from shardwright.router.joins.written_results import write_results
from shardwright.router.operations.checked_pipeline import EXECUTING
from shardwright.router.operations.collation import effective_collation
from shardwright.router.operations.cursor_opening import answer_first_batch
from shardwright.router.operations.operation import Operation
from shardwright.router.pipelines.moved_forward import moved_forward
from shardwright.router.pipelines.stages import WRITING
from shardwright.router.reads.aggregate import batch_size
from shardwright.router.reads.pipeline import Pipeline, Stage
from shardwright.router.reads.read_concern import at_time, is_snapshot
from shardwright.router.replies.own_reply import Reply
from shardwright.sharding.snapshot_concern import demanded_time
from shardwright.sharding.targeting.collation import is_simple
from shardwright.sharding.timestamps import unpack_timestamp
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import STRING, append, encode_document, encode_elements, without
from shardwright.wire.stages import with_stages
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor

_NOT_FOR_PREFIX: Final = frozenset({b"cursor", b"txnNumber", b"writeConcern"})
_NOT_LAST: Final = 40601


@may_run_in_reactor
async def answer_joined(
    operation: Operation, cursor_namespace: str, elsewhere: frozenset[str], run_aggregate: AggregateRunner
) -> Reply:
    """Answer an aggregation that no shard can run.

    Args:
        operation: the aggregation.
        cursor_namespace: of its cursor.
        elsewhere: the collections that the shard which would run it does not have; empty if that is not known.
        run_aggregate: runs other aggregations, wherever their data is.

    Raises:
        TargetShardedError: the target of its ``$merge`` is sharded.
        CommandError: it failed.
    """
    await in_own_task()
    request = operation.request
    pipeline = moved_forward(Pipeline.parse(request))
    size = batch_size(request)
    reading, writing = _without_writing(pipeline)
    before, rest = split_at_join(reading, request.db, elsewhere)
    time = _one_time(operation)
    body = at_time(request.body, time, operation.context.clock.time.cluster_time)
    prefix = with_stages(without(body, _NOT_FOR_PREFIX), tuple(stage.raw for stage in before))
    prefix = append(prefix, encode_elements({"cursor": {}}))
    source = await stream_of(operation, run_aggregate, prefix, cursor_namespace)
    is_known = False
    try:
        collation = await _effective_collation(operation)
        is_known = True
    finally:
        if not is_known:
            operation.context.cursors.kill_remotes(source.remotes)
    environment = JoinEnvironment(
        operation, run_aggregate, body, encode_document(collation), is_collated=not is_simple(collation)
    )
    stream = await run_stages(environment, source, rest)
    if writing is not None:
        return await write_results(environment, stream, writing, cursor_namespace)
    cursor = StreamCursor(operation.context.clock, cursor_namespace, stream, at_cluster_time=time)
    try:
        return await answer_first_batch(operation, cursor, size)
    except CommandError as error:
        if not error.message.startswith(EXECUTING):
            error.message = EXECUTING + error.message
        raise


async def _effective_collation(operation: Operation) -> Mapping[str, Any]:
    """The collation of an aggregation; asked for after the shards have accepted the routing that it is from.

    Raises:
        CommandError: it could not be found out.
    """
    has_collection = next(iter(operation.request.fields.values()))[0] == STRING
    routing = await operation.context.routing.find(operation.namespace) if has_collection else None
    return await effective_collation(operation, routing)


def _without_writing(pipeline: Pipeline) -> tuple[Pipeline, Stage | None]:
    """The stages that read, and the one that writes, if there is one.

    Raises:
        CommandError: 40601, a stage that writes is not the last one.
    """
    for name in pipeline.names[:-1]:
        if name in WRITING:
            raise CommandError(_NOT_LAST, f"{name} can only be the final stage in the pipeline")
    if pipeline.stages[-1].name in WRITING:
        return Pipeline(pipeline.stages[:-1]), pipeline.stages[-1]
    return pipeline, None


def split_at_join(
    pipeline: Pipeline, db: str, elsewhere: frozenset[str]
) -> tuple[tuple[Stage, ...], tuple[Stage, ...]]:
    """The stages before the first that names a collection elsewhere, and the others.

    Args:
        pipeline: the stages.
        db: the database of the aggregation.
        elsewhere: see `answer_joined`.
    """
    for number, stage in enumerate(pipeline.stages):
        named = Pipeline((stage,)).involved_namespaces(db)
        if named and (not elsewhere or not elsewhere.isdisjoint(named)):
            return pipeline.stages[:number], pipeline.stages[number:]
    raise AssertionError("no stage names a collection elsewhere")


def _one_time(operation: Operation) -> Timestamp | None:
    """The time at which all collections are read in a snapshot; None outside snapshots."""
    request, clock = operation.request, operation.context.clock.time.cluster_time
    if not is_snapshot(request) or not clock:
        return None
    return demanded_time(request.get(b"readConcern"), unpack_timestamp(clock))
