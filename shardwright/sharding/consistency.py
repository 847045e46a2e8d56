"""The rules of ``checkMetadataConsistency``: gaps and overlaps of chunks and zones, and the reported inconsistencies.

The inconsistencies have the names and descriptions of MongoDB 7.0 and 8.0. Additions of ours are `ChunkOnUnknownShard`,
`DatabaseOnUnknownShard`, `OrphanedDocuments`, `OutdatedDatabaseEntry`, `StrayChunks`, `StrayDatabase` and
`StrayTemporaryCollection`.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Any
from uuid import UUID

from bson.binary import Binary

from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire import rawbson
from shardwright.wire.errors import CommandError


class Inconsistency(Enum):
    """A kind of inconsistency; the value is its description."""

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
        """Build the document that reports an instance in a collection or database."""
        return {"type": self.name, "description": self.value, "details": {"namespace": namespace, **details}}


def namespace_of(inconsistency: Mapping[str, Any]) -> str:
    """Return the collection or database of an inconsistency."""
    return str(inconsistency["details"]["namespace"])


class RangeCheck:
    """A check of one collection's ranges. Each is a decoded document with ``min`` and ``max``."""

    def __init__(self, namespace: str, uuid: UUID, pattern: ShardKeyPattern) -> None:
        self._namespace = namespace
        self._about = {"collectionUUID": Binary.from_uuid(uuid)}
        self._pattern = pattern

    def chunks(self, chunks: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the inconsistencies of chunks, given in the order of their lower bounds."""
        first: Mapping[str, Any] | None = None
        last: Mapping[str, Any] | None = None
        for chunk in chunks:
            if not self._is_valid(chunk):
                yield self._found(Inconsistency.CorruptedChunkShardKey, chunk=chunk, shardKeyPattern=self._key)
                continue
            if last is not None:
                yield from self._between(last, chunk)
            first, last = first or chunk, chunk
        if first is None or last is None:
            yield self._found(Inconsistency.MissingRoutingTable)
            return
        yield from self._at_the_ends(first["min"], last["max"])

    def zones(self, zones: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the inconsistencies of zones, given in the order of their lower bounds."""
        last: Mapping[str, Any] | None = None
        for zone in zones:
            if not self._is_valid_zone(zone):
                yield self._found(Inconsistency.CorruptedZoneShardKey, zone=zone, shardKeyPattern=self._key)
                continue
            if last is not None and self._extended(last["max"]) > self._extended(zone["min"]):
                yield self._found(Inconsistency.ZonesRangeOverlap, zoneA=last, zoneB=zone)
            last = zone

    def _between(self, low: Mapping[str, Any], high: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        end, begin = self._bytes(low["max"]), self._bytes(high["min"])
        if end < begin:
            yield self._found(Inconsistency.RoutingTableRangeGap, chunkA=low, chunkB=high)
        elif end > begin:
            yield self._found(Inconsistency.RoutingTableRangeOverlap, chunkA=low, chunkB=high)

    def _at_the_ends(self, low: Mapping[str, Any], high: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        pattern = self._pattern
        if self._bytes(low) != pattern.global_min_bytes():
            least = rawbson.decode_document(pattern.global_min())
            yield self._found(Inconsistency.RoutingTableMissingMinKey, minKeyObj=low, globalMin=least)
        if self._bytes(high) != pattern.global_max_bytes():
            greatest = rawbson.decode_document(pattern.global_max())
            yield self._found(Inconsistency.RoutingTableMissingMaxKey, maxKeyObj=high, globalMax=greatest)

    def _found(self, kind: Inconsistency, **details: object) -> dict[str, Any]:
        return kind.document(self._namespace, **self._about, **details)

    @property
    def _key(self) -> dict[str, Any]:
        return rawbson.decode_document(self._pattern.document)

    def _is_valid(self, chunk: Mapping[str, Any]) -> bool:
        bounds = [chunk.get("min"), chunk.get("max")]
        return all(isinstance(each, Mapping) and self._pattern.is_valid_bound(_raw(each)) for each in bounds)

    def _is_valid_zone(self, zone: Mapping[str, Any]) -> bool:
        try:
            return all(self._extended(zone[bound]) for bound in ("min", "max"))
        except (CommandError, KeyError):
            return False

    def _bytes(self, bound: Mapping[str, Any]) -> bytes:
        return self._pattern.key_bytes(_raw(bound))

    def _extended(self, bound: Mapping[str, Any]) -> bytes:
        return self._pattern.key_bytes(self._pattern.extend_range_bound(_raw(bound)))


def _raw(bound: Mapping[str, Any]) -> bytes:
    return rawbson.encode_document(bound)
