"""The execution of an aggregation: the commands to the shards, and the stage that returns their results.

Where a shard's mongod merges, the pipeline is a list of segments. The first runs on the shards that have the documents.
Each further one runs on the single shard that has the other collections its stages name, and reads the cursors of the
previous segment through ``$mergeCursors``. The client receives the cursor of the last one. All cursors are opened
without documents before anything is read, so that all segments work at the same time and results stream.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import bson
from bson.timestamp import Timestamp

from shardwright.router.exec.merge import MergeStage
from shardwright.router.exec.shard import ShardStage
from shardwright.router.exec.stage import AS_CLIENT, IN_SESSION, ListStage, MissingStage
from shardwright.router.operations.aggregation_plan import AggregationPlan, SplitPlan, complete, split
from shardwright.router.operations.aggregation_writes import merge_into
from shardwright.router.operations.cursor_opening import OpenedRead, kill_opened, open_on_shards
from shardwright.router.operations.involved_collections import Segment, foreign_collections
from shardwright.router.operations.listed_collection import effective_collation
from shardwright.router.operations.nonexistent_namespace import unless_missing
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import with_routing
from shardwright.router.operations.scatter import forwarded, send_to_one
from shardwright.router.pipelines.commands import (
    NEEDS_MERGE,
    SESSION,
    Remote,
    merge_cursors,
    merger_command,
    reading_before_writing,
    runtime_constants,
    shards_command,
    with_concerns,
    with_disk,
    with_present_span,
)
from shardwright.router.pipelines.router_merge import Counting, RouterMerge
from shardwright.router.pipelines.split import with_shard_name
from shardwright.router.pipelines.stages import WRITING, Place, check_stages, place_of
from shardwright.router.placement.routing_info import CollectionRouting
from shardwright.router.reads.aggregations import batch_size
from shardwright.router.reads.read_concern import at_time
from shardwright.router.reads.result_merger import ResultMerger
from shardwright.router.replies.cursor_reply import CursorReply
from shardwright.router.replies.shard_reply import ShardReply, latest_operation_time
from shardwright.sharding.cluster_time import unpack_timestamp
from shardwright.sharding.pipelines.pipeline import INVOLVED_NAMESPACES, Pipeline, Stage
from shardwright.sharding.pipelines.pushdown import moved_forward
from shardwright.wire.rawbson import OBJECT, STRING, append, decode_document, encode_elements, without
from shardwright.wire.read_preference import PRIMARY, ReadPreference
from shardwright.wire.request import Request, with_stages
from shardwright.wire.request_validation import API_PARAMETERS

_VARYING: Final = re.compile(rb"\$(?:rand|function)\0")
"""Operators that give an expression of constants another value each time."""

_CHECKED: Final = frozenset(
    {"aggregate", "pipeline", "cursor", "collation", "hint", "let", "allowDiskUse", "bypassDocumentValidation"}
)


async def shared_body(operation: Operation, shard: str) -> bytes:
    """Return the client's command in the form for several shards.

    Args:
        shard: one of the shards.

    Raises:
        CommandError: APIStrictError; a variable of ``let`` cannot be evaluated; or the shard cannot be reached.
    """
    request = operation.request
    if request.get(b"apiStrict"):
        await _check_strictly(operation, shard)
    if b"let" not in request.fields:
        return request.body
    _, _, start, end = request.fields[b"let"]
    if _VARYING.search(request.body, start, end) is None:
        return request.body
    variables = await _evaluated(operation, shard)
    return append(without(request.body, (b"let",)), encode_elements({"let": variables}))


async def _check_strictly(operation: Operation, shard: str) -> None:
    """Check the command against the Stable API on a mongod.

    The shards' commands have fields outside of the Stable API, so they cannot carry the client's API parameters.
    """
    given = decode_document(operation.request.body)
    command = {name: value for name, value in given.items() if name in _CHECKED}
    parameters = {name: value for name, value in given.items() if name.encode() in API_PARAMETERS}
    explaining = {"explain": command, "verbosity": "queryPlanner", **parameters}
    await operation.context.sender.command(shard, operation.request.db, explaining, may_repeat=True)


async def _evaluated(operation: Operation, shard: str) -> Mapping[str, Any]:
    """Evaluate the variables of ``let`` once on a mongod; return them as constants."""
    given = operation.request.get(b"let")
    named = {name: f"$${name}" for name in given}
    command = {"aggregate": 1, "pipeline": [{"$documents": [named]}], "cursor": {}, "let": given}
    reply = await operation.context.sender.command(shard, operation.request.db, command, may_repeat=True)
    [values] = reply["cursor"]["firstBatch"]
    return {name: {"$literal": values[name]} if name in values else "$$REMOVE" for name in given}


async def run_aggregate(operation: Operation, cursor_namespace: str) -> OpenedRead:
    """Open an aggregation on a collection.

    Args:
        cursor_namespace: the collection's or view's namespace, for the client's cursor.

    Raises:
        ShardedViewError: it is a view that no single shard can run.
        JoinNeededError: no shard has all collections that it reads.
    """
    request = operation.request
    pipeline = Pipeline.parse(request)
    check_stages(pipeline)
    ordered = moved_forward(pipeline)

    async def attempt(routing: CollectionRouting) -> OpenedRead:
        present = with_present_span(request, pipeline, routing)
        if present is not None:
            return await _run_part(operation, present, cursor_namespace)
        plan = await complete(AggregationPlan(operation, pipeline, ordered, routing.namespace, routing))
        if plan.target is not None:
            return await merge_into(operation, pipeline, plan.target, cursor_namespace, run_aggregate)
        return await _open(plan, cursor_namespace)

    reading = with_routing(operation, operation.namespace, attempt)
    return await unless_missing(operation, reading, OpenedRead(operation, MissingStage(), cursor_namespace))


async def _run_part(operation: Operation, request: Request, cursor_namespace: str) -> OpenedRead:
    """Run an aggregation in a rewritten form."""
    part = operation.part(request)
    try:
        return await run_aggregate(part, cursor_namespace)
    finally:
        operation.note_part(part)


async def run_on_all_shards(operation: Operation, pipeline: Pipeline, namespace: str) -> OpenedRead:
    """Open a pipeline whose source describes shards and reads no collection."""
    versions = dict.fromkeys(await operation.context.shards.all_ids(), b"")
    plan = AggregationPlan(operation, pipeline, moved_forward(pipeline), namespace, versions=versions)
    await split(plan)
    return await _open(plan, namespace)


async def _open(plan: AggregationPlan, cursor_namespace: str) -> OpenedRead:
    """Open the cursors of a plan.

    Args:
        cursor_namespace: the namespace of the client's cursor.

    Raises:
        StaleRoutingError: a shard refused the versions.
    """
    operation, versions, parts = plan.operation, plan.versions or {}, plan.split
    if parts is None:
        [(shard, elements)] = versions.items()
        return await run_on_one_shard(operation, plan.pipeline, shard, elements, cursor_namespace, plan.time)
    body = await shared_body(operation, plan.shards[0]) if versions else operation.request.body
    body = at_time(body, plan.time, operation.context.clock.time.cluster_time)
    if parts.counting is not None:
        return await _open_count(plan, body, parts.counting, cursor_namespace)
    if parts.merge is not None:
        return await _open_merge(plan, body, parts.merge, cursor_namespace)
    return await _open_segments(plan, parts, body, cursor_namespace)


async def run_on_one_shard(
    operation: Operation,
    pipeline: Pipeline,
    shard: str,
    versions: bytes,
    cursor_namespace: str,
    time: Timestamp | None = None,
) -> OpenedRead:
    """Forward the command to the one shard that has all the data.

    Args:
        cursor_namespace: the namespace of the client's cursor.
        time: of the snapshot, None outside snapshots.

    Raises:
        StaleRoutingError: the shard refused the versions.
        CommandError: CommandNotSupported, the pipeline needs a collection on another shard.
    """
    request = operation.request
    is_writing = not WRITING.isdisjoint(pipeline.names)
    is_renamed = next(iter(request.fields.values()))[0] == STRING and cursor_namespace != operation.namespace
    preference = PRIMARY if is_writing else operation.read_preference
    foreign = await foreign_collections(operation, pipeline, shard, preference, create_databases=True)
    body = None if time is None else at_time(request.body, time, operation.context.clock.time.cluster_time)
    if place_of(pipeline.first) is Place.DESCRIBES_SHARD:
        body = with_stages(request.body, _raw(with_shard_name(pipeline.stages, shard)))
    frame = forwarded(operation, versions + foreign.version_elements, body)
    with foreign.blamed():
        if is_renamed and not is_writing:
            size = batch_size(request)
            replies = await open_on_shards(operation, {shard: frame}, preference=preference)
            root = MergeStage(operation.sender, cursor_namespace, replies, ResultMerger(1), at_cluster_time=time)
            return OpenedRead(operation, root, cursor_namespace, size)
        reply = await send_to_one(operation, shard, frame, preference=preference, may_repeat=not is_writing)
    return OpenedRead(operation, ShardStage(operation.sender, reply), cursor_namespace)


async def _open_merge(plan: AggregationPlan, body: bytes, merge: RouterMerge, namespace: str) -> OpenedRead:
    """Open the shards' part of a pipeline, whose results the router merges."""
    operation, size = plan.operation, batch_size(plan.operation.request)
    is_plain = merge.order is None
    if not is_plain:
        body = append(without(body, API_PARAMETERS), NEEDS_MERGE)
    bodies = {shard: with_stages(body, _raw(with_shard_name(merge.stages, shard))) for shard in plan.shards}
    replies = await _open_parts(plan, bodies)
    merger = ResultMerger(len(replies), order=merge.order, skip=merge.skip, limit=merge.limit)
    passed_on = AS_CLIENT if is_plain else IN_SESSION
    root = MergeStage(operation.sender, namespace, replies, merger, at_cluster_time=plan.time, passed_on=passed_on)
    return OpenedRead(operation, root, namespace, size)


async def _open_count(plan: AggregationPlan, body: bytes, counting: Counting, namespace: str) -> OpenedRead:
    """Add up the counts of the shards."""
    body = append(without(body, (b"cursor",)), encode_elements({"cursor": {}}))
    replies = await _open_parts(plan, dict.fromkeys(plan.shards, with_stages(body, counting.shard_stages)))
    counted = counting.total([_counted(counting.field, CursorReply.of(reply).documents()) for reply in replies])
    documents = [] if counted is None else [bson.encode(counted)]
    root = ListStage(documents, at_cluster_time=plan.time, operation_time=latest_operation_time(replies))
    return OpenedRead(plan.operation, root, namespace)


def _raw(stages: Sequence[Stage]) -> tuple[bytes, ...]:
    return tuple(stage.raw for stage in stages)


def _counted(field: str, documents: Sequence[bytes]) -> int:
    """Return the count in a shard's result; there is no result if nothing matched."""
    return int(decode_document(documents[0])[field]) if documents else 0


async def _open_parts(plan: AggregationPlan, bodies: Mapping[str, bytes]) -> list[ShardReply]:
    """Open the cursors of the shards' part.

    Args:
        bodies: the command for each shard, without versions.

    Raises:
        StaleRoutingError: a shard refused the versions.
    """
    operation, versions = plan.operation, plan.versions or {}
    frames = {shard: forwarded(operation, versions[shard], body) for shard, body in bodies.items()}
    return await open_on_shards(operation, frames, preference=operation.read_preference)


async def _open_segments(plan: AggregationPlan, parts: SplitPlan, body: bytes, cursor_namespace: str) -> OpenedRead:
    """Open the cursors of the shards' part and of all segments; the last one is the client's.

    Args:
        body: the client's command in the form for several shards, with the time of the snapshot.
        cursor_namespace: the namespace of the client's cursor.

    Raises:
        StaleRoutingError: a shard refused the versions.
    """
    operation = plan.operation
    size = batch_size(operation.request)
    collation = await effective_collation(operation, plan.routing)
    constants = b""
    if b"runtimeConstants" not in operation.request.fields:
        cluster_time = unpack_timestamp(operation.context.clock.time.cluster_time)
        constants = runtime_constants(datetime.now(UTC), cluster_time)
    bodies = {
        shard: shards_command(body, with_shard_name(parts.shards_part, shard), constants, needs_merge=parts.needs_merge)
        for shard in plan.shards
    }
    replies = await _open_parts(plan, bodies)
    targeted, sort = operation.targeted, parts.sort
    try:
        for number, segment in enumerate(parts.segments):
            reading = _reading(operation, replies, plan.namespace, sort)
            stages = reading_before_writing(segment.stages)
            merging = merger_command(
                body if stages == segment.stages else with_disk(body),
                reading,
                stages,
                constants,
                collation,
                is_read_by_mongod=number < len(parts.segments) - 1,
            )
            replies = [await _open_segment(operation, segment, merging, replies)]
            targeted, sort = targeted + operation.targeted, None
    except BaseException:
        kill_opened(operation, replies)
        raise
    finally:
        operation.targeted = targeted
    if cursor_namespace == plan.namespace:
        shard_stage = ShardStage(operation.sender, replies[0], passed_on=IN_SESSION)
        return OpenedRead(operation, shard_stage, cursor_namespace, size)
    merger, time = ResultMerger(1), plan.time
    root = MergeStage(operation.sender, cursor_namespace, replies, merger, at_cluster_time=time, passed_on=IN_SESSION)
    return OpenedRead(operation, root, cursor_namespace, size)


def _reading(
    operation: Operation, replies: Sequence[ShardReply], namespace: str, sort: Mapping[str, int] | None
) -> bytes:
    """Return the raw stage that reads the previous segment's cursors.

    The mongods read in the client's session, if any, because cursors outside sessions time out after ten idle minutes.
    """
    session = operation.request.get(SESSION)
    transaction = None if operation.transaction is None else operation.transaction.number
    return merge_cursors([_remote(reply) for reply in replies], namespace, sort, session, transaction)


def _preference(operation: Operation, segment: Segment) -> ReadPreference:
    return PRIMARY if segment.is_writing else operation.read_preference


async def _is_genuine(operation: Operation, segment: Segment, preference: ReadPreference) -> bool:
    """Whether a segment runs on a genuine MongoDB shard server.

    Such a server crashes when it reads cursors for a client that does not present itself as a mongos.
    """
    extension = INVOLVED_NAMESPACES.decode()
    return not await operation.context.shards.understands(segment.shard, extension, preference)


async def _open_segment(
    operation: Operation, segment: Segment, body: bytes, previous: Sequence[ShardReply]
) -> ShardReply:
    """Open the cursor of a segment, whose mongod reads and finally closes the previous segment's cursors.

    A mongod waits indefinitely for a frozen host, so the router enforces the time limit.

    Raises:
        StaleRoutingError: the shard refused the versions of the other collections.
    """
    preference = _preference(operation, segment)
    pipeline = Pipeline(segment.stages)
    foreign = await foreign_collections(operation, pipeline, segment.shard, preference, create_databases=True)
    is_genuine = await _is_genuine(operation, segment, preference)
    if is_genuine:
        body = with_concerns(body)
    frame = forwarded(operation, foreign.version_elements, body)
    sources = tuple({address: None for reply in previous for address in (reply.address, *reply.sources)})
    with foreign.blamed():
        reply = await send_to_one(
            operation, segment.shard, frame, preference=preference, as_router=is_genuine, sources=sources
        )
        reply.raise_for_error()
    reply.raise_operation_time(latest_operation_time(previous), operation.context.clock)
    return reply


def _remote(reply: ShardReply) -> Remote:
    kind, _, start, end = reply.fields[b"cursor"]
    assert kind == OBJECT
    return Remote(reply.shard_id, reply.address, reply.body[start:end])
