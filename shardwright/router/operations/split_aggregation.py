"""A pipeline over several shards whose results a shard's mongod merges by reading the other shards' cursors.

The pipeline is a list of segments. The first runs on the shards that have the documents. Each further one runs on the
single shard that has the other collections its stages name, and reads the cursors of the previous segment through
``$mergeCursors``. The client receives the cursor of the last one. All cursors are opened without documents before
anything is read, so that all segments work at the same time and results stream.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from bson.timestamp import Timestamp

from shardwright.router.cursors.merged import MergedCursor
from shardwright.router.operations.aggregation_plan import AggregationPlan, Segment, foreign_collections
from shardwright.router.operations.cursor_opening import adopt, answer_first_batch, kill_opened, open_on_shards
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.scatter import forwarded, send_to_one
from shardwright.router.pipelines.commands import (
    SESSION,
    Remote,
    merge_cursors,
    merger_command,
    reading_before_writing,
    runtime_constants,
    shards_command,
    with_concerns,
    with_disk,
)
from shardwright.router.pipelines.split import with_shard_name
from shardwright.router.reads.aggregate import batch_size
from shardwright.router.reads.read_concern import at_time
from shardwright.router.reads.result_merger import ResultMerger
from shardwright.router.replies.reply_builder import Reply
from shardwright.router.replies.shard_reply import ShardReply, latest_operation_time
from shardwright.sharding.involved_namespaces import INVOLVED_NAMESPACES
from shardwright.sharding.pipelines.pipeline import Pipeline
from shardwright.sharding.timestamps import unpack_timestamp
from shardwright.wire.rawbson import OBJECT
from shardwright.wire.read_preference import PRIMARY, ReadPreference


async def run_segments(
    operation: Operation,
    body: bytes,
    plan: AggregationPlan,
    versions: Mapping[str, bytes],
    cursor_namespace: str,
    *,
    source_namespace: str,
    collation: Mapping[str, Any],
    time: Timestamp | None = None,
) -> Reply:
    """Open the cursors of all segments and reply with the last one.

    Args:
        body: its command, from `shared_body`.
        versions: the version elements for each shard that has documents.
        cursor_namespace: the namespace of the client's cursor.
        source_namespace: the namespace of the shards' cursors.
        time: of the snapshot, None outside snapshots.

    Raises:
        StaleRoutingError: a shard refused the versions.
    """
    size = batch_size(operation.request)
    clock = operation.context.clock.time.cluster_time
    body = at_time(body, time, clock)
    constants = b""
    if b"runtimeConstants" not in operation.request.fields:
        constants = runtime_constants(datetime.now(UTC), unpack_timestamp(clock))
    # The mongods read in the client's session, if any, because cursors outside sessions time out after ten idle
    # minutes.
    session = operation.request.get(SESSION)
    transaction = None if operation.transaction is None else operation.transaction.number
    needs_merge = plan.needs_merge
    commands = {
        shard: shards_command(
            body,
            with_shard_name(plan.shards_part, shard),
            constants,
            needs_merge=needs_merge,
        )
        for shard in versions
    }
    frames = {shard: forwarded(operation, elements, commands[shard]) for shard, elements in versions.items()}
    replies = await open_on_shards(operation, frames, preference=operation.read_preference)
    targeted, sort = operation.targeted, plan.sort
    try:
        for number, segment in enumerate(plan.segments):
            is_last = number == len(plan.segments) - 1
            remotes = [_remote(reply) for reply in replies]
            reading = merge_cursors(remotes, source_namespace, sort, session, transaction)
            stages = reading_before_writing(segment.stages)
            merging = merger_command(
                body if stages == segment.stages else with_disk(body),
                reading,
                stages,
                constants,
                collation,
                is_read_by_mongod=not is_last,
            )
            seen = latest_operation_time(replies)
            read = tuple({address: None for reply in replies for address in (reply.address, *reply.sources)})
            replies = [await _open_segment(operation, segment, merging, read)]
            replies[0].raise_operation_time(seen, operation.context.clock)
            targeted, sort = targeted + operation.targeted, None
    except BaseException:
        kill_opened(operation, replies)
        raise
    finally:
        operation.targeted = targeted
    if cursor_namespace == source_namespace:
        return adopt(operation, replies[0], has_api_parameters=False)
    cursor = MergedCursor(
        operation.sender,
        cursor_namespace,
        replies,
        ResultMerger(1),
        at_cluster_time=time,
        has_api_parameters=False,
    )
    return await answer_first_batch(operation, cursor, size)


def _preference(operation: Operation, segment: Segment) -> ReadPreference:
    return PRIMARY if segment.is_writing else operation.read_preference


async def _is_genuine(operation: Operation, segment: Segment, preference: ReadPreference) -> bool:
    """Whether a segment runs on a genuine MongoDB shard server.

    Such a server crashes when it reads cursors for a client that does not present itself as a mongos.
    """
    extension = INVOLVED_NAMESPACES.decode()
    return not await operation.context.shards.understands(segment.shard, extension, preference)


async def _open_segment(operation: Operation, segment: Segment, body: bytes, sources: tuple[str, ...]) -> ShardReply:
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
    with foreign.blamed():
        reply = await send_to_one(
            operation, segment.shard, frame, preference=preference, as_router=is_genuine, sources=sources
        )
        reply.raise_for_error()
        return reply


def _remote(reply: ShardReply) -> Remote:
    kind, _, start, end = reply.fields[b"cursor"]
    assert kind == OBJECT
    return Remote(reply.shard_id, reply.address, reply.body[start:end])
