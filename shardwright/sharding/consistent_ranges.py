"""Whether the chunks of a collection tile its key space, and whether its zones are disjoint. No I/O."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from uuid import UUID

from bson.binary import Binary

from shardwright.sharding.inconsistencies import Inconsistency
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire import rawbson
from shardwright.wire.errors import CommandError


class RangeCheck:
    """A check of one collection's ranges, each of which is a decoded document with ``min`` and ``max``.

    Args:
        namespace: the collection.
        uuid: its UUID.
        pattern: its shard key.
    """

    def __init__(self, namespace: str, uuid: UUID, pattern: ShardKeyPattern) -> None:
        self._namespace = namespace
        self._about = {"collectionUUID": Binary.from_uuid(uuid)}
        self._pattern = pattern

    def chunks(self, chunks: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """What is wrong with the chunks, given in the order of their lower bounds."""
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
        """What is wrong with the zones, given in the order of their lower bounds."""
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
