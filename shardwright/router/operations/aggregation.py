"""A pipeline, run by the one shard that has the data, or by several when merging is simple."""

from collections.abc import Mapping, Sequence

import bson
from bson.timestamp import Timestamp

from shardwright.router.cursors.merged import MergedCursor
from shardwright.router.operations.cursor_opening import answer_first_batch, open_on_one_shard, open_on_shards
from shardwright.router.operations.foreign_collections import foreign_collections
from shardwright.router.operations.missing import unless_missing
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import with_routing
from shardwright.router.operations.scatter import forwarded
from shardwright.router.placement.collection_routing import CollectionRouting
from shardwright.router.reads.aggregate import (
    WRITING_STAGES,
    batch_size,
    not_supported,
    with_shard_name,
    with_stages,
)
from shardwright.router.reads.find_arguments import collation_of
from shardwright.router.reads.merge import ResultMerger
from shardwright.router.reads.pipeline import Pipeline
from shardwright.router.reads.pipeline_merge import PER_SHARD_SOURCES, MergeablePipeline
from shardwright.router.reads.pipeline_shards import shards_for_pipeline
from shardwright.router.reads.read_concern import at_time, snapshot_time
from shardwright.router.replies.cursor_reply import FIRST_BATCH, CursorReply, cursor_element, empty_cursor
from shardwright.router.replies.own_reply import Reply
from shardwright.wire.rawbson import append, decode_document, encode_elements, without
from shardwright.wire.read_preference import PRIMARY


async def run_aggregate(operation: Operation, cursor_namespace: str) -> Reply:
    """The reply to an aggregation on a collection.

    Args:
        operation: the aggregation.
        cursor_namespace: the name of the cursor for the client: the collection's, or the view's.

    Raises:
        ShardedViewError: it is not a collection but a view that no shard can run alone.
        CommandError: it failed.
    """
    request = operation.request
    pipeline = Pipeline.parse(request)
    collation = collation_of(request)

    async def attempt(routing: CollectionRouting) -> Reply:
        time = snapshot_time(request, routing.table, operation.context.clock.time.cluster_time)
        shards = shards_for_pipeline(routing, pipeline, collation, time)
        mergeable = MergeablePipeline.of(pipeline) if len(shards) > 1 else None
        if len(shards) > 1 and mergeable is None:
            routing = await operation.context.routing.latest(routing)  # no shard checks that this is still so
            shards = shards_for_pipeline(routing, pipeline, collation, time)
        versions = {shard: routing.versions_for(shard) for shard in shards}
        if len(shards) == 1:
            return await run_on_one_shard(operation, pipeline, shards[0], versions[shards[0]], cursor_namespace, time)
        if mergeable is None:
            raise not_supported(pipeline, shards)
        return await run_on_shards(operation, mergeable, cursor_namespace, versions, time)

    reading = with_routing(operation, operation.namespace, attempt)
    return await unless_missing(operation, reading, empty_cursor(cursor_namespace))


async def run_on_one_shard(
    operation: Operation,
    pipeline: Pipeline,
    shard: str,
    versions: bytes,
    cursor_namespace: str | None = None,
    time: Timestamp | None = None,
) -> Reply:
    """Pass the command on to the one shard that has all the data.

    Args:
        operation: the command.
        pipeline: its pipeline.
        shard: the shard.
        versions: the version elements.
        cursor_namespace: of the cursor; None to keep the shard's.
        time: of the snapshot, None outside snapshots.

    Raises:
        StaleRoutingError: the shard refused the versions.
        CommandError: CommandNotSupported, the pipeline needs a collection on another shard; or the shard cannot be
            reached.
    """
    request = operation.request
    is_writing = not WRITING_STAGES.isdisjoint(pipeline.names)
    preference = PRIMARY if is_writing else operation.read_preference
    foreign = await foreign_collections(operation, pipeline, shard, preference, create_databases=True)
    body = None if time is None else at_time(request.body, time, operation.context.clock.time.cluster_time)
    if pipeline.first in PER_SHARD_SOURCES:
        body = with_stages(request.body, with_shard_name(tuple(stage.raw for stage in pipeline.stages), shard))
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
    """Open a cursor on one shard and give it to the client under another namespace.

    Raises:
        StaleRoutingError: the shard refused the versions.
        CommandError: it failed.
    """
    size = batch_size(operation.request)
    replies = await open_on_shards(operation, {shard: frame}, preference=operation.read_preference)
    merger = ResultMerger(len(replies))
    cursor = MergedCursor(operation.context.sender, cursor_namespace, replies, merger, at_cluster_time=time)
    return await answer_first_batch(operation, cursor, size)


async def run_on_shards(
    operation: Operation,
    mergeable: MergeablePipeline,
    namespace: str,
    versions: Mapping[str, bytes],
    time: Timestamp | None = None,
) -> Reply:
    """Run the pipeline on several shards and merge their results.

    Args:
        operation: the command.
        mergeable: its pipeline.
        namespace: of the cursor.
        versions: the version elements for each shard.
        time: of the snapshot, None outside snapshots.

    Raises:
        StaleRoutingError: some shard refused the versions.
        CommandError: some shard failed.
    """
    request = operation.request
    first_batch_size = batch_size(request)
    body = at_time(request.body, time, operation.context.clock.time.cluster_time)
    if mergeable.order is not None:
        body = append(body, encode_elements({"needsMerge": True, "fromMongos": True}))
    if mergeable.count_field is not None:
        body = append(without(body, (b"cursor",)), encode_elements({"cursor": {}}))
    frames = {
        shard: forwarded(operation, elements, with_stages(body, with_shard_name(mergeable.shard_stages, shard)))
        for shard, elements in versions.items()
    }
    replies = await open_on_shards(operation, frames, preference=operation.read_preference)
    if mergeable.count_field is not None:
        counted = mergeable.total(
            [_counted(mergeable.count_field, CursorReply.of(reply).documents()) for reply in replies]
        )
        documents = [] if counted is None else [bson.encode(counted)]
        return operation.raw_reply(cursor_element(FIRST_BATCH, documents, 0, namespace))
    merger = ResultMerger(len(replies), order=mergeable.order, skip=mergeable.skip, limit=mergeable.limit)
    cursor = MergedCursor(operation.context.sender, namespace, replies, merger, at_cluster_time=time)
    return await answer_first_batch(operation, cursor, first_batch_size)


def _counted(field: str, documents: Sequence[bytes]) -> int:
    """The number in a shard's result, 0 if there is no result because nothing matched."""
    return int(decode_document(documents[0])[field]) if documents else 0
