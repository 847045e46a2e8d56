"""Aggregations regardless of the location of their data: on shards, on a view's collection, or joined by the router.

The router joins if a pipeline names a collection that is not on the shard that would run the pipeline. The stages
before the first such stage run as usual. The router reads their results, and runs the other stages on them (`stages`).

After a join, the mongod of the shard with the target of a ``$out`` or ``$merge`` writes, with the results as its input.
A ``$out`` therefore replaces the target atomically, and all modes of ``$merge`` keep their meaning.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from bson.timestamp import Timestamp

from shardwright.router.exec.combined import BoundedStage
from shardwright.router.exec.stage import ListStage, Stage
from shardwright.router.lookup.environment import JoinEnvironment, open_part
from shardwright.router.lookup.mongod_stages import hand_over
from shardwright.router.lookup.pipeline_input import Room, documents_stage
from shardwright.router.lookup.stages import run_stages
from shardwright.router.operations.aggregation import run_aggregate
from shardwright.router.operations.aggregation_writes import merge_into
from shardwright.router.operations.checked_pipeline import EXECUTING, check_pipeline
from shardwright.router.operations.collectionless import is_run_by_router, run_without_collection
from shardwright.router.operations.cursor_opening import AggregateRunner, OpenedRead
from shardwright.router.operations.involved_collections import OUT_TO_SHARDED, foreign_collections, merge_target
from shardwright.router.operations.listed_collection import effective_collation
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import ATTEMPTS_MAX, with_routing
from shardwright.router.operations.scatter import send_to_one
from shardwright.router.pipelines.commands import reading_before_writing, with_disk
from shardwright.router.pipelines.stages import WRITING
from shardwright.router.placement.routing_info import CollectionRouting
from shardwright.router.reads.aggregations import batch_size
from shardwright.router.reads.read_concern import at_time, is_snapshot
from shardwright.router.reads.views import ResolvedView
from shardwright.router.replies.shard_reply import JoinNeededError, ShardedViewError, ShardReply
from shardwright.sharding.cluster_time import unpack_timestamp
from shardwright.sharding.pipelines.pipeline import Pipeline
from shardwright.sharding.pipelines.pipeline import Stage as PipelineStage
from shardwright.sharding.pipelines.pushdown import moved_forward
from shardwright.sharding.targeting.values import is_simple
from shardwright.sharding.transaction_protocol import demanded_time
from shardwright.wire.errors import CommandError
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import STRING, append, encode_document, encode_elements, without
from shardwright.wire.read_preference import PRIMARY
from shardwright.wire.request import with_stages
from shardwright.wire.transport.reactor import in_own_task, may_run_in_reactor

_WRITE_CONCERN_ERROR: Final = b"writeConcernError"


async def aggregate_anywhere(operation: Operation, cursor_namespace: str, *, is_checked: bool = False) -> OpenedRead:
    """Open an aggregation.

    Args:
        cursor_namespace: the collection's or view's namespace, for the cursor.
        is_checked: whether a mongod has already validated the pipeline, as a part of another one.
    """
    try:
        return await _run_or_join(operation, cursor_namespace, is_checked=is_checked)
    except ShardedViewError as error:
        return await aggregate_view(operation, error, cursor_namespace, is_checked=is_checked)


@may_run_in_reactor
async def aggregate_view(
    operation: Operation, error: ShardedViewError, cursor_namespace: str | None = None, *, is_checked: bool = False
) -> OpenedRead:
    """Execute a read of a view as an aggregation on the underlying collection.

    Args:
        error: the reply of the shard that could not run the read alone.
        cursor_namespace: the namespace of the cursor; None for the view's.

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
            error = again  # its collection has since become a view
        finally:
            operation.note_part(expanded)
    raise error.error


async def _run_or_join(operation: Operation, cursor_namespace: str, *, is_checked: bool) -> OpenedRead:
    """Do the same as `aggregate_anywhere`, but not on views.

    Raises:
        ShardedViewError: it is a view that no single shard can run.
    """
    try:
        try:
            if _has_collection(operation):
                return await run_aggregate(operation, cursor_namespace)
            return await run_without_collection(operation, is_nested=is_checked)
        except JoinNeededError as error:
            return await _join(operation, cursor_namespace, error, is_checked=is_checked)
    except CommandError as error:
        if _is_by_router(operation):
            _describe(error, is_by_router=True)
        raise


def _has_collection(operation: Operation) -> bool:
    return next(iter(operation.request.fields.values()))[0] == STRING


def _is_by_router(operation: Operation) -> bool:
    return not _has_collection(operation) and is_run_by_router(Pipeline.parse(operation.request))


@may_run_in_reactor
async def _join(operation: Operation, cursor_namespace: str, error: JoinNeededError, *, is_checked: bool) -> OpenedRead:
    """Run an aggregation that no shard can run alone; restart if the target of its ``$merge`` becomes sharded."""
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
            return await open_joined(operation, cursor_namespace, error.elsewhere, run_part)
        except TargetShardedError:
            operation.retries += 1
    raise error


@may_run_in_reactor
async def open_joined(
    operation: Operation, cursor_namespace: str, elsewhere: frozenset[str], run_aggregate: AggregateRunner
) -> OpenedRead:
    """Run an aggregation that no shard can run alone.

    Args:
        cursor_namespace: the namespace of its cursor.
        elsewhere: the collections missing on the shard that would run it; empty if unknown.
        run_aggregate: runs other aggregations, regardless of the location of their data.

    Raises:
        TargetShardedError: the target of its ``$merge`` is sharded.
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
    source = await open_part(operation, run_aggregate, prefix, cursor_namespace)
    with operation.context.cursors.closing_on_error(source):
        collation = await _effective_collation(operation)
    environment = JoinEnvironment(
        operation, run_aggregate, body, encode_document(collation), is_collated=not is_simple(collation)
    )
    stage = await run_stages(environment, source, rest)
    if writing is not None:
        return await write_results(environment, stage, writing, cursor_namespace)
    errors = partial(_describe, is_by_router=_is_by_router(operation))
    root = BoundedStage(stage, environment.reading, errors, at_cluster_time=time)
    return OpenedRead(operation, root, cursor_namespace, size)


def _describe(error: CommandError, *, is_by_router: bool) -> None:
    """Add mongod's prefix to an error of the first batch; mongos runs no plan executor."""
    message = error.message.removeprefix(EXECUTING)
    error.message = message if is_by_router else EXECUTING + message


def split_at_join(
    pipeline: Pipeline, db: str, elsewhere: frozenset[str]
) -> tuple[tuple[PipelineStage, ...], tuple[PipelineStage, ...]]:
    """Split a pipeline before the first stage that names a collection elsewhere.

    Args:
        elsewhere: see `open_joined`.
    """
    for number, stage in enumerate(pipeline.stages):
        named = Pipeline((stage,)).involved_namespaces(db)
        if named and (not elsewhere or not elsewhere.isdisjoint(named)):
            return pipeline.stages[:number], pipeline.stages[number:]
    raise AssertionError("no stage names a collection elsewhere")


class TargetShardedError(Exception):
    """The target of a ``$merge`` turned out to be sharded, before any write. Its routing is now cached."""


async def write_results(
    environment: JoinEnvironment, source: Stage, stage: PipelineStage, cursor_namespace: str
) -> OpenedRead:
    """Write the documents of a source; return the result of the aggregation, which has no documents.

    Args:
        stage: the ``$out`` or ``$merge``. The target of a ``$merge`` is not sharded.
        cursor_namespace: the namespace of the client's cursor, which has no documents.

    Raises:
        CommandError: the documents could not be read or written; 28769, the target of ``$out`` is sharded.
    """
    operation = environment.operation
    try:
        handed = await hand_over(environment, source)
        with handed.discarded_on_error():
            reply = await _write(environment, handed.stage, stage)
    finally:
        operation.context.cursors.close(source)
    failed = reply.fields.get(_WRITE_CONCERN_ERROR)
    elements = b"" if failed is None else reply.body[failed[1] : failed[3]]
    return OpenedRead(operation, ListStage(reply_elements=elements), cursor_namespace)


async def _write(environment: JoinEnvironment, handed: bytes, stage: PipelineStage) -> ShardReply:
    operation, pipeline = environment.operation, Pipeline((stage,))
    stages = reading_before_writing((stage,))
    body = with_disk(environment.writing_command([handed, *(each.raw for each in stages)]))

    async def attempt(routing: CollectionRouting) -> ShardReply:
        if routing.is_sharded:
            raise _became_sharded(routing, stage)
        shard = routing.primary
        foreign = await foreign_collections(operation, pipeline, shard, PRIMARY, create_databases=True)
        frame = op_msg(append(body, foreign.version_elements), request_id=operation.request.message.request_id)
        with foreign.blamed():
            reply = await send_to_one(operation, shard, frame)
            reply.raise_for_error()
        return reply

    names = tuple(pipeline.involved_namespaces(environment.db))
    if names:
        return await with_routing(operation, names[0], attempt, create_database=True)
    await environment.collect(await environment.compute([documents_stage(()), stage.raw]), Room(0))
    raise AssertionError(f"a mongod accepts a {stage.name} that names no collection")


def _became_sharded(routing: CollectionRouting, stage: PipelineStage) -> Exception:
    if stage.name == "$out":
        return CommandError(OUT_TO_SHARDED, f"{routing.namespace} cannot be sharded")
    return TargetShardedError(routing.namespace)


_NOT_FOR_PREFIX: Final = frozenset({b"cursor", b"txnNumber", b"writeConcern"})


_NOT_LAST: Final = 40601


async def _effective_collation(operation: Operation) -> Mapping[str, Any]:
    """Determine the collation of an aggregation, after the shards have accepted the routing that it depends on."""
    routing = await operation.context.routing.find(operation.namespace) if _has_collection(operation) else None
    return await effective_collation(operation, routing)


def _without_writing(pipeline: Pipeline) -> tuple[Pipeline, PipelineStage | None]:
    """Split off the stage that writes, if any; refuse it (40601) at any other place than the end."""
    for name in pipeline.names[:-1]:
        if name in WRITING:
            raise CommandError(_NOT_LAST, f"{name} can only be the final stage in the pipeline")
    if pipeline.stages[-1].name in WRITING:
        return Pipeline(pipeline.stages[:-1]), pipeline.stages[-1]
    return pipeline, None


def _one_time(operation: Operation) -> Timestamp | None:
    """Return the read time of all collections in a snapshot; None outside snapshots."""
    request, clock = operation.request, operation.context.clock.time.cluster_time
    if not is_snapshot(request) or not clock:
        return None
    return demanded_time(request.get(b"readConcern"), unpack_timestamp(clock))
