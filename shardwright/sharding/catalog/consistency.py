"""The rules of ``checkMetadataConsistency``: gaps and overlaps of chunks and zones, differences among shards. No I/O.

Indexes and options may differ among the shards that own chunks of a collection, and options from the catalog.

The inconsistencies have the names and descriptions of MongoDB 7.0 and 8.0. Additions of ours are `ChunkOnUnknownShard`,
`DatabaseOnUnknownShard`, `OrphanedDocuments`, `OutdatedDatabaseEntry`, `StrayChunks`, `StrayDatabase` and
`StrayTemporaryCollection`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final
from uuid import UUID

from bson.binary import Binary

from shardwright.sharding.catalog.documents import CollectionEntry
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.time_series import TimeSeriesFields
from shardwright.wire import rawbson
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import encode_document

MODIFIABLE: Final[Mapping[str, Any]] = {
    "validator": {},
    "validationLevel": "strict",
    "validationAction": "error",
    "changeStreamPreAndPostImages": {"enabled": False},
}
"""The options that ``collMod`` can change, with their defaults."""

CONFIG_SHARD: Final = "config"
"""Name of the config servers in reports, among the shards' names, as in MongoDB."""


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


def option_value(name: str, options: Mapping[str, Any]) -> object:
    """Return the value of an option, or its default if it is left out."""
    return options.get(name, MODIFIABLE.get(name))


def different_options(options: Mapping[str, Any], others: Mapping[str, Any]) -> list[str]:
    """Return the sorted names of options that differ, in the format of ``listCollections``. The UUID is ignored."""
    names = {*options, *others} - {"uuid"}
    return sorted(name for name in names if not _is_same(name, options, others))


def _is_same(name: str, options: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    return encode_document({name: option_value(name, options)}) == encode_document({name: option_value(name, others)})


def index_differences(namespace: str, of_shards: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return an inconsistency for each index that is missing or has other properties on some owner.

    Args:
        of_shards: the index specifications, by owner.
    """
    names = sorted({index["name"] for indexes in of_shards.values() for index in indexes})
    found = []
    for name in names:
        versions = {
            shard: next((index for index in indexes if index["name"] == name), None)
            for shard, indexes in of_shards.items()
        }
        present = [index for index in versions.values() if index is not None]
        missing = sorted(shard for shard, index in versions.items() if index is None)
        fields = {field for index in present for field in index}
        unequal = sorted(field for field in fields if any(each.get(field) != present[0].get(field) for each in present))
        if missing or unequal:
            info = {"indexName": name, "missingFromShards": missing, "inconsistentProperties": unequal}
            found.append(Inconsistency.InconsistentIndex.document(namespace, info=info))
    return found


def option_differences(entry: CollectionEntry, of_shards: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return an inconsistency if the owners' options differ from each other or from the catalog.

    Args:
        entry: the collection in the catalog, with its default collation and the fields of a time series.
        of_shards: the options of the collection on each owner, as ``listCollections`` shows them.
    """
    versions: list[tuple[Mapping[str, Any], list[str]]] = []
    for shard, options in sorted(of_shards.items()):
        alike = next((shards for each, shards in versions if not different_options(each, options)), None)
        if alike is None:
            versions.append((options, [shard]))
        else:
            alike.append(shard)
    if not all(_are_of_entry(entry, options) for options, _ in versions):
        versions.append((_options_of(entry), [CONFIG_SHARD]))
    if len(versions) < 2:
        return []
    found = [{"options": options, "shards": shards} for options, shards in versions]
    return [Inconsistency.CollectionOptionsMismatch.document(str(entry.namespace), options=found)]


def _are_of_entry(entry: CollectionEntry, options: Mapping[str, Any]) -> bool:
    if options.get("collation") != _options_of(entry).get("collation"):
        return False
    time_series = options.get("timeseries")
    if time_series is None or entry.time_series is None:
        return time_series is entry.time_series
    # A mongod adds the bucket span to options that have only a granularity; the catalog has the requested options.
    return TimeSeriesFields.from_document(time_series).makes_buckets_like(entry.time_series)


def _options_of(entry: CollectionEntry) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if entry.default_collation is not None:
        options["collation"] = dict(entry.default_collation)
    if entry.time_series is not None:
        options["timeseries"] = entry.time_series.to_document()
    return options
