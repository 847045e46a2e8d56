"""Past placement of a collection's chunks, for reads at that time (``atClusterTime``)."""

from functools import cached_property

from bson.timestamp import Timestamp

from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.targeting.targets import Placement
from shardwright.sharding.timestamps import pack_timestamp


class PastPlacement:
    """A routing table as of a time, with the interface that `sharding.targeting` needs.

    Every method raises StaleChunkHistory if the catalog has dropped the history of a relevant chunk.
    """

    def __init__(self, table: RoutingTable, time: Timestamp) -> None:
        self._table = table
        self._time = time

    @property
    def key_pattern(self) -> ShardKeyPattern:
        """The shard key of the collection."""
        return self._table.key_pattern

    @cached_property
    def shards(self) -> frozenset[str]:
        """Shards that owned at least one chunk."""
        pattern = self.key_pattern
        return frozenset(self.shards_for_range(pattern.global_min_bytes(), pattern.global_max_bytes()))

    def shard_for_key(self, key: bytes) -> str:
        """Return the shard that owned the key with these bytes."""
        return self._table.shard_for_key_at(key, self._time)

    def shards_for_range(self, low: bytes, high: bytes) -> set[str]:
        """Return the shards that owned a part of ``[low, high)``."""
        return self._table.shards_for_range_at(low, high, self._time)


def placement_at(table: RoutingTable, time: Timestamp) -> Placement:
    """Return the placement of a table's chunks at a time: the table itself unless a chunk has moved since."""
    return table if pack_timestamp(time) >= table.newest_valid_after else PastPlacement(table, time)
