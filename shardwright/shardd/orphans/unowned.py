"""A filter for all ranges of a collection that a shard does not own."""

from typing import Final

from shardwright.shardd.orphans.ownership_filter import OwnershipFilter
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.routing_table import RoutingTable

RANGES_MAX: Final = 1_000
"""With more ranges, mongod would take longer to parse the filter than to run most operations."""


def unowned_filter(table: RoutingTable, shard: str) -> OwnershipFilter | None:
    """The filter that passes only documents that a shard owns; None if it would have too many ranges."""
    ranges: list[ChunkRange] = []
    for chunk in table.chunks():
        if chunk.shard == shard:
            continue
        if ranges and ranges[-1].max_key == chunk.min_key:
            last = ranges[-1]
            ranges[-1] = ChunkRange(last.min, chunk.max, last.min_key, chunk.max_key)
        elif len(ranges) == RANGES_MAX:
            return None
        else:
            ranges.append(ChunkRange(chunk.min, chunk.max, chunk.min_key, chunk.max_key))
    return OwnershipFilter(table.key_pattern, ranges, table.collection.default_collation, is_complete=True)
