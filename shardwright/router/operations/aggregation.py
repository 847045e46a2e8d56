"""An aggregation on one collection: the choice of its shards, and the preparation of their command."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import bson
from bson.timestamp import Timestamp

from shardwright.router.cursors.merged import MergedCursor
from shardwright.router.operations.aggregation_plan import (
    MAY_WRITE_OUT,
    AggregationPlan,
    check_out_targets,
    foreign_collections,
    plan_aggregation,
)
from shardwright.router.operations.checked_pipeline import check_pipeline
from shardwright.router.operations.cursor_opening import (
    answer_first_batch,
    open_on_one_shard,
    open_on_shards,
    snapshot_of,
)
from shardwright.router.operations.listed_collection import effective_collation
from shardwright.router.operations.merge_writes import merge_into, merge_target, names_fields
from shardwright.router.operations.nonexistent_namespace import unless_missing
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import with_routing
from shardwright.router.operations.router_documents import check_distribution
from shardwright.router.operations.scatter import forwarded
from shardwright.router.operations.split_aggregation import run_segments
from shardwright.router.pipelines.commands import API_PARAMETERS, NEEDS_MERGE
from shardwright.router.pipelines.router_merge import Counting, RouterMerge
from shardwright.router.pipelines.split import with_shard_name
from shardwright.router.pipelines.stages import COLLECTIONLESS, WRITING, Place, check_stages, place_of
from shardwright.router.pipelines.targeting import shards_for_pipeline, with_present_span
from shardwright.router.placement.collection_routing import CollectionRouting
from shardwright.router.reads.aggregate import batch_size
from shardwright.router.reads.find_arguments import collation_of
from shardwright.router.reads.read_concern import at_time
from shardwright.router.reads.result_merger import ResultMerger
from shardwright.router.replies.cursor_reply import FIRST_BATCH, CursorReply, cursor_element, empty_cursor
from shardwright.router.replies.reply_builder import Reply
from shardwright.router.replies.shard_reply import latest_operation_time
from shardwright.sharding.pipelines.pipeline import Pipeline, Stage
from shardwright.sharding.pipelines.pushdown import moved_forward
from shardwright.wire.pipelines import with_stages
from shardwright.wire.rawbson import append, decode_document, encode_elements, without
from shardwright.wire.read_preference import PRIMARY
from shardwright.wire.request import Request

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


async def run_aggregate(operation: Operation, cursor_namespace: str) -> Reply:
    """Run an aggregation on a collection.

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
    collation = collation_of(request)
    may_write_out = not MAY_WRITE_OUT.isdisjoint(pipeline.names)

    async def attempt(routing: CollectionRouting) -> Reply:
        if routing.is_sharded:
            check_distribution(pipeline, request.db)
        if may_write_out:
            await check_out_targets(operation, pipeline)
        if pipeline.first in COLLECTIONLESS:
            await check_pipeline(operation)
        present = with_present_span(request, pipeline, routing)
        if present is not None:
            return await _run_part(operation, present, cursor_namespace)
        target = await merge_target(operation, pipeline)
        if target is not None and target.is_sharded:
            return await merge_into(operation, pipeline, target, cursor_namespace, run_aggregate)
        if target is not None and names_fields(pipeline.stages[-1]):
            await check_pipeline(operation, target.primary)
        snapshot = snapshot_of(operation, routing.table)
        time = snapshot.reading
        shards = shards_for_pipeline(routing, ordered, collation, snapshot.targeting)
        versions = {shard: routing.versions_for(shard) for shard in shards}
        may_count = len(shards) == 1 or batch_size(request) != 0
        plan = await plan_aggregation(operation, ordered, shards, may_count=may_count)
        if plan is None:
            return await run_on_one_shard(operation, pipeline, shards[0], versions[shards[0]], cursor_namespace, time)
        body = await shared_body(operation, shards[0])
        if plan.segments:
            applied = await effective_collation(operation, routing)
            return await run_segments(
                operation,
                body,
                plan,
                versions,
                cursor_namespace,
                source_namespace=routing.namespace,
                collation=applied,
                time=time,
            )
        return await _merge_here(operation, body, plan, cursor_namespace, versions, time)

    reading = with_routing(operation, operation.namespace, attempt)
    return await unless_missing(operation, reading, empty_cursor(cursor_namespace))


async def _run_part(operation: Operation, request: Request, cursor_namespace: str) -> Reply:
    """Run an aggregation in a rewritten form."""
    part = operation.part(request)
    try:
        return await run_aggregate(part, cursor_namespace)
    finally:
        operation.note_part(part)


async def _merge_here(
    operation: Operation,
    body: bytes,
    plan: AggregationPlan,
    namespace: str,
    versions: Mapping[str, bytes],
    time: Timestamp | None = None,
) -> Reply:
    if plan.counting is not None:
        return await _count(operation, body, plan.counting, namespace, versions, time)
    assert plan.merge is not None
    return await _run_on_shards(operation, body, plan.merge, namespace, versions, time)


async def run_on_all_shards(operation: Operation, pipeline: Pipeline, namespace: str) -> Reply:
    """Run a pipeline whose source describes shards and reads no collection."""
    versions = dict.fromkeys(await operation.context.shards.all_ids(), b"")
    plan = await plan_aggregation(operation, moved_forward(pipeline), tuple(versions))
    if plan is None:
        [shard] = versions
        return await run_on_one_shard(operation, pipeline, shard, b"")
    body = await shared_body(operation, next(iter(versions))) if versions else operation.request.body
    if plan.segments:
        collation = await effective_collation(operation, None)
        return await run_segments(
            operation, body, plan, versions, namespace, source_namespace=namespace, collation=collation
        )
    return await _merge_here(operation, body, plan, namespace, versions)


async def run_on_one_shard(
    operation: Operation,
    pipeline: Pipeline,
    shard: str,
    versions: bytes,
    cursor_namespace: str | None = None,
    time: Timestamp | None = None,
) -> Reply:
    """Forward the command to the one shard that has all the data.

    Args:
        cursor_namespace: the namespace of the cursor; None to keep the shard's.
        time: of the snapshot, None outside snapshots.

    Raises:
        StaleRoutingError: the shard refused the versions.
        CommandError: CommandNotSupported, the pipeline needs a collection on another shard.
    """
    request = operation.request
    is_writing = not WRITING.isdisjoint(pipeline.names)
    preference = PRIMARY if is_writing else operation.read_preference
    foreign = await foreign_collections(operation, pipeline, shard, preference, create_databases=True)
    body = None if time is None else at_time(request.body, time, operation.context.clock.time.cluster_time)
    if place_of(pipeline.first) is Place.DESCRIBES_SHARD:
        body = with_stages(request.body, _raw(with_shard_name(pipeline.stages, shard)))
    frame = forwarded(operation, versions + foreign.version_elements, body)
    with foreign.blamed():
        if cursor_namespace is not None and cursor_namespace != operation.namespace and not is_writing:
            return await _renamed(operation, shard, frame, cursor_namespace, time)
        return await open_on_one_shard(
            operation,
            shard,
            frame,
            preference=preference,
            may_repeat=not is_writing,
        )


async def _renamed(
    operation: Operation, shard: str, frame: bytes, cursor_namespace: str, time: Timestamp | None
) -> Reply:
    """Open a cursor on one shard and return it to the client under another namespace.

    Raises:
        StaleRoutingError: the shard refused the versions.
    """
    size = batch_size(operation.request)
    replies = await open_on_shards(operation, {shard: frame}, preference=operation.read_preference)
    merger = ResultMerger(len(replies))
    cursor = MergedCursor(operation.sender, cursor_namespace, replies, merger, at_cluster_time=time)
    return await answer_first_batch(operation, cursor, size)


async def _run_on_shards(
    operation: Operation,
    body: bytes,
    merge: RouterMerge,
    namespace: str,
    versions: Mapping[str, bytes],
    time: Timestamp | None = None,
) -> Reply:
    """Run the shards' part of a pipeline, and merge the results here.

    Args:
        body: from `shared_body`.
        time: of the snapshot, None outside snapshots.

    Raises:
        StaleRoutingError: a shard refused the versions.
    """
    request = operation.request
    first_batch_size = batch_size(request)
    body = at_time(body, time, operation.context.clock.time.cluster_time)
    is_plain = merge.order is None
    if not is_plain:
        body = append(without(body, API_PARAMETERS), NEEDS_MERGE)
    frames = {
        shard: forwarded(operation, elements, with_stages(body, _raw(with_shard_name(merge.stages, shard))))
        for shard, elements in versions.items()
    }
    replies = await open_on_shards(operation, frames, preference=operation.read_preference)
    merger = ResultMerger(len(replies), order=merge.order, skip=merge.skip, limit=merge.limit)
    cursor = MergedCursor(
        operation.sender, namespace, replies, merger, at_cluster_time=time, has_api_parameters=is_plain
    )
    return await answer_first_batch(operation, cursor, first_batch_size)


async def _count(
    operation: Operation,
    body: bytes,
    counting: Counting,
    namespace: str,
    versions: Mapping[str, bytes],
    time: Timestamp | None,
) -> Reply:
    """Add up the counts of the shards.

    Raises:
        StaleRoutingError: a shard refused the versions.
    """
    body = at_time(body, time, operation.context.clock.time.cluster_time)
    body = append(without(body, (b"cursor",)), encode_elements({"cursor": {}}))
    frames = {
        shard: forwarded(operation, elements, with_stages(body, counting.shard_stages))
        for shard, elements in versions.items()
    }
    replies = await open_on_shards(operation, frames, preference=operation.read_preference)
    counted = counting.total([_counted(counting.field, CursorReply.of(reply).documents()) for reply in replies])
    documents = [] if counted is None else [bson.encode(counted)]
    operation.operation_time = latest_operation_time(replies)
    return operation.raw_reply(*cursor_element(FIRST_BATCH, documents, 0, namespace, at_cluster_time=time))


def _raw(stages: Sequence[Stage]) -> tuple[bytes, ...]:
    return tuple(stage.raw for stage in stages)


def _counted(field: str, documents: Sequence[bytes]) -> int:
    """Return the count in a shard's result; there is no result if nothing matched."""
    return int(decode_document(documents[0])[field]) if documents else 0
