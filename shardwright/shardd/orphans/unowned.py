"""A filter for all ranges of a collection that a shard does not own."""

from itertools import islice
from typing import Final

from shardwright.shardd.orphans.ownership_filter import OwnershipFilter
from shardwright.sharding.routing_table import RoutingTable

RANGES_MAX: Final = 1_000
"""With more ranges, mongod would take longer to parse the filter than to run most operations."""


def unowned_filter(table: RoutingTable, shard: str) -> OwnershipFilter | None:
    """The filter that passes only documents that a shard owns; None if it would have too many ranges."""
    unowned = (part for is_owned, part in table.ranges_by_ownership(shard) if not is_owned)
    ranges = list(islice(unowned, RANGES_MAX + 1))
    if len(ranges) > RANGES_MAX:
        return None
    return OwnershipFilter(table.key_pattern, ranges, table.collection.default_collation, is_complete=True)
