"""Aggregations that name collections which the shard that would run them does not have.

The stages before the first that names such a collection run as usual. The router reads their results, and runs the
other stages on them (`stages`).
"""

from shardwright.router.joins.environment import AggregateRunner, JoinEnvironment
from shardwright.router.joins.stages import not_supported_after_join, run_stages
from shardwright.router.joins.stream_cursor import StreamCursor
from shardwright.router.joins.streams import DocumentStream
from shardwright.router.operations.collation import effective_collation
from shardwright.router.operations.cursor_opening import answer_first_batch
from shardwright.router.operations.operation import Operation
from shardwright.router.pipelines.stages import WRITING
from shardwright.router.reads.aggregate import batch_size, with_stages
from shardwright.router.reads.pipeline import Pipeline, Stage
from shardwright.router.reads.read_concern import at_time, is_snapshot
from shardwright.router.replies.own_reply import Reply
from shardwright.sharding.targeting.collation import is_simple
from shardwright.sharding.timestamps import unpack_timestamp
from shardwright.wire.rawbson import STRING, append, encode_document, encode_elements, without
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor

_NOT_FOR_PREFIX = frozenset({b"cursor", b"lsid", b"txnNumber", b"writeConcern"})


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
        CommandError: it failed.
    """
    await in_own_task()
    request = operation.request
    pipeline = Pipeline.parse(request)
    for name in pipeline.names:
        if name in WRITING:
            raise not_supported_after_join(name)
    size = batch_size(request)
    before, rest = _split(pipeline, operation.request.db, elsewhere)
    body = _at_one_time(operation)
    has_collection = next(iter(request.fields.values()))[0] == STRING
    routing = await operation.context.routing.find(operation.namespace) if has_collection else None
    collation = await effective_collation(operation, routing)
    environment = JoinEnvironment(
        operation, run_aggregate, body, encode_document(collation), is_collated=not is_simple(collation)
    )
    prefix = with_stages(without(body, _NOT_FOR_PREFIX), tuple(stage.raw for stage in before))
    prefix = append(prefix, encode_elements({"cursor": {}}))
    source = await environment.run(prefix, cursor_namespace)
    cursor = await _opened(operation, environment, cursor_namespace, source, rest)
    return await answer_first_batch(operation, cursor, size)


async def _opened(
    operation: Operation, environment: JoinEnvironment, namespace: str, source: DocumentStream, rest: tuple[Stage, ...]
) -> StreamCursor:
    context = operation.context
    is_open = False
    try:
        stream = await run_stages(environment, source, rest)
        is_open = True
        return StreamCursor(context.clock, namespace, stream)
    finally:
        if not is_open:
            context.cursors.kill_remotes(source.remotes)


def _split(pipeline: Pipeline, db: str, elsewhere: frozenset[str]) -> tuple[tuple[Stage, ...], tuple[Stage, ...]]:
    """The stages before the first that names a collection elsewhere, and the others."""
    for number, stage in enumerate(pipeline.stages):
        named = Pipeline((stage,)).involved_namespaces(db)
        if named and (not elsewhere or not elsewhere.isdisjoint(named)):
            return pipeline.stages[:number], pipeline.stages[number:]
    raise AssertionError("no stage names a collection elsewhere")


def _at_one_time(operation: Operation) -> bytes:
    """The command; in a snapshot, with a time for all collections."""
    request, clock = operation.request, operation.context.clock.time.cluster_time
    if not is_snapshot(request) or not clock:
        return request.body
    concern = request.get(b"readConcern")
    return at_time(request.body, concern.get("atClusterTime", unpack_timestamp(clock)), clock)
