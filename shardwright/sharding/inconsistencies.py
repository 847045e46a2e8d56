"""The kinds of damage that ``checkMetadataConsistency`` reports, as MongoDB 7.0 and 8.0 name and describe them.

Additions of ours are `ChunkOnUnknownShard`, `DatabaseOnUnknownShard`, `OrphanedDocuments`, `OutdatedDatabaseEntry`,
`StrayChunks`, `StrayDatabase` and `StrayTemporaryCollection`.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any


class Inconsistency(Enum):
    """A kind of damage; the value is its description."""

    ChunkOnUnknownShard = "Found a chunk whose shard does not exist"
    CollectionOptionsMismatch = "Found collection with mismatching options across shards and/or config server"
    CollectionUUIDMismatch = "Found collection on a shard with a UUID that differs from that in the catalog"
    CorruptedChunkShardKey = "Found a chunk whose bounds are not keys of the collection's shard key pattern"
    CorruptedZoneShardKey = "Found a zone whose bounds are not keys of the collection's shard key pattern"
    DatabaseOnUnknownShard = "Found a database whose primary shard does not exist"
    HiddenShardedCollection = "Found a sharded collection of a database that is not in the catalog"
    InconsistentIndex = "Found an index that is not the same on all shards that own chunks"
    MisplacedCollection = "Unsharded collection found on shard different from database primary shard"
    MissingLocalCollection = "Found a sharded collection that does not exist on a shard that owns chunks of it"
    MissingRoutingTable = "Found a sharded collection without chunks"
    MissingShardKeyIndex = "Found a sharded collection without an index that supports its shard key on an owning shard"
    OrphanedDocuments = "Found documents on a shard that owns neither their range nor a range deletion for it"
    OutdatedDatabaseEntry = "Found a database whose entry in the catalog is older than what its primary shard knows"
    RoutingTableMissingMaxKey = "Routing table has a gap because last chunk boundary does not reach MaxKey"
    RoutingTableMissingMinKey = "Routing table has a gap because first chunk does not start from MinKey"
    RoutingTableRangeGap = "Found a gap between two consecutive chunks"
    RoutingTableRangeOverlap = "Found an overlap between two consecutive chunks"
    ShardCatalogCacheCollectionMetadataMismatch = "Found a shard that knows newer chunks than the catalog has"
    StrayChunks = "Found chunks of a collection that is not in the catalog"
    StrayDatabase = "Found a database on a shard that is not in the catalog"
    StrayTemporaryCollection = "Found a temporary collection of a resharding operation that does not exist"
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
