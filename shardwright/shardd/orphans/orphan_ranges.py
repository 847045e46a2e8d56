"""The ranges of a collection of which this shard may hold documents that another shard owns.

They are not stored anywhere: they are the parts of range deletions that the routing table assigns to other shards. So
an incoming range is hidden from its registration until the routing table assigns it to this shard, and an outgoing
range from the moment when the routing table assigns it to another, without any notification.
"""

from collections.abc import Iterable, Iterator

from bson.timestamp import Timestamp

from shardwright.shardd.orphans.range_deletion_task import RangeDeletionTask
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.key_order import encode_key
from shardwright.sharding.refined_key import extend_bound
from shardwright.sharding.routing_table import RoutedChunk, RoutingTable
from shardwright.sharding.shard_key import ShardKeyPattern


def range_of(task: RangeDeletionTask, pattern: ShardKeyPattern) -> ChunkRange:
    """The range of a range deletion, with encoded keys for comparisons.

    Args:
        task: the range deletion. If the shard key was refined since, its bounds lack the added fields.
        pattern: the collection's present shard key.
    """
    return extended(task.range.min, task.range.max, pattern)


def extended(low: bytes, high: bytes, pattern: ShardKeyPattern) -> ChunkRange:
    """The range between two bounds of the shard key, or of a key that it refines."""
    low, high = extend_bound(low, pattern), extend_bound(high, pattern)
    return ChunkRange(low, high, encode_key(low), encode_key(high))


def orphan_ranges(
    tasks: Iterable[RangeDeletionTask], table: RoutingTable, shard: str, time: Timestamp | None = None
) -> tuple[ChunkRange, ...]:
    """The ranges of which ``shard`` may hold documents without owning them, sorted and merged.

    Args:
        tasks: the range deletions of the namespace; those of another collection of that name do not count.
        table: the collection's routing table.
        shard: id of this shard.
        time: a cluster time in the past for which to answer, given its ``tasks``; None for the present.

    Raises:
        CommandError: StaleChunkHistory, ``table`` does not know who owned one of the ranges at ``time``.
    """
    uuid = table.collection.uuid
    return merged(
        part
        for task in tasks
        if task.collection_uuid == uuid
        for part, chunk in chunks_within(table, range_of(task, table.key_pattern))
        if (chunk.shard if time is None else table.shard_for_key_at(chunk.min_key, time)) != shard
    )


def chunks_within(table: RoutingTable, wanted: ChunkRange) -> Iterator[tuple[ChunkRange, RoutedChunk]]:
    """The chunks that overlap a range, in order, each with its part that lies in the range."""
    key = wanted.min_key
    while key < wanted.max_key:
        chunk = table.chunk_for_key(key)
        low = (chunk.min, chunk.min_key) if chunk.min_key >= wanted.min_key else (wanted.min, wanted.min_key)
        high = (chunk.max, chunk.max_key) if chunk.max_key <= wanted.max_key else (wanted.max, wanted.max_key)
        yield ChunkRange(low[0], high[0], low[1], high[1]), chunk
        key = chunk.max_key


def merged(ranges: Iterable[ChunkRange]) -> tuple[ChunkRange, ...]:
    """Sort ranges, and merge those that touch or overlap."""
    found: list[ChunkRange] = []
    for each in sorted(ranges, key=lambda each: each.min_key):
        if found and each.min_key <= found[-1].max_key:
            last = found[-1]
            if each.max_key > last.max_key:
                found[-1] = ChunkRange(last.min, each.max, last.min_key, each.max_key)
        else:
            found.append(each)
    return tuple(found)
