"""The kinds of damage that ``checkMetadataConsistency`` reports, as MongoDB 7.0 and 8.0 name and describe them.

`OrphanedDocuments` and `StrayDatabase` are additions of ours.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any


class Inconsistency(Enum):
    """A kind of damage; the value is its description."""

    CollectionUUIDMismatch = "Found collection on a shard with a UUID that differs from that in the catalog"
    CorruptedChunkShardKey = "Found a chunk whose bounds are not keys of the collection's shard key pattern"
    CorruptedZoneShardKey = "Found a zone whose bounds are not keys of the collection's shard key pattern"
    HiddenShardedCollection = "Found a sharded collection of a database that is not in the catalog"
    InconsistentIndex = "Found an index that is not the same on all shards that own chunks"
    MisplacedCollection = "Unsharded collection found on shard different from database primary shard"
    MissingLocalCollection = "Found a sharded collection that does not exist on a shard that owns chunks of it"
    MissingRoutingTable = "Found a sharded collection without chunks"
    MissingShardKeyIndex = "Found a sharded collection without an index that supports its shard key on an owning shard"
    OrphanedDocuments = "Found documents on a shard that owns neither their range nor a range deletion for it"
    RoutingTableMissingMaxKey = "Routing table has a gap because last chunk boundary does not reach MaxKey"
    RoutingTableMissingMinKey = "Routing table has a gap because first chunk does not start from MinKey"
    RoutingTableRangeGap = "Found a gap between two consecutive chunks"
    RoutingTableRangeOverlap = "Found an overlap between two consecutive chunks"
    StrayDatabase = "Found a database on a shard that is not in the catalog"
    ZonesRangeOverlap = "Found an overlap between two consecutive zones"

    def document(self, namespace: str, **details: object) -> dict[str, Any]:
        """The document that reports an instance.

        Args:
            namespace: the collection or database.
            details: where the damage is.
        """
        return {"type": self.name, "description": self.value, "details": {"namespace": namespace, **details}}


def namespace_of(inconsistency: Mapping[str, Any]) -> str:
    """The collection or database that an inconsistency is about."""
    return str(inconsistency["details"]["namespace"])
