"""The zones of one collection, and the zone of each key."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

NO_ZONE: Final = ""
"""Placeholder zone of keys outside all zones: every shard may own them."""


@dataclass(frozen=True, slots=True)
class ZonePart:
    """A range of keys in one zone, or in `NO_ZONE`."""

    range: ChunkRange
    zone: str


class ZoneMap:
    """The whole key space of a collection, divided into parts by the ranges of its zones."""

    def __init__(self, pattern: ShardKeyPattern, zones: Iterable[tuple[bytes, bytes, str]] = ()) -> None:
        """Divide the key space by ranges, each with lower bound, upper bound (both full shard keys) and zone.

        Raises RangeOverlapConflict, or BadValue for an empty range.
        """
        self.parts = tuple(_divide(pattern, zones))
        self._starts = [part.range.min_key for part in self.parts]

    @property
    def has_zones(self) -> bool:
        """Whether any key belongs to a zone."""
        return len(self.parts) > 1 or self.parts[0].zone != NO_ZONE

    @property
    def zones(self) -> tuple[str, ...]:
        """Zones in the order of their first ranges, without `NO_ZONE`."""
        return tuple(dict.fromkeys(part.zone for part in self.parts if part.zone != NO_ZONE))

    @property
    def bounds(self) -> tuple[ChunkRange, ...]:
        """Parts after the first one. Each must begin with a chunk."""
        return tuple(part.range for part in self.parts[1:])

    def zone_of(self, key: bytes) -> str:
        """Return the zone of a key, given as key bytes."""
        return self.parts[bisect_right(self._starts, key) - 1].zone

    def ranges(self, zones: frozenset[str]) -> tuple[ChunkRange, ...] | None:
        """Return the ranges of the given zones; None for all keys if these are all zones of the collection."""
        if all(part.zone in zones for part in self.parts):
            return None
        return tuple(part.range for part in self.parts if part.zone in zones)

    def bounds_inside(self, chunk: ChunkRange) -> tuple[bytes, ...]:
        """Return the keys at which a chunk has to be split, so that all keys of each part are in one zone."""
        first, end = bisect_right(self._starts, chunk.min_key), bisect_left(self._starts, chunk.max_key)
        return tuple(part.range.min for part in self.parts[first:end])


def _divide(pattern: ShardKeyPattern, zones: Iterable[tuple[bytes, bytes, str]]) -> Iterator[ZonePart]:
    given = [(ChunkRange.of(pattern, low, high), zone) for low, high, zone in zones]
    end, end_key = pattern.global_min(), pattern.global_min_bytes()
    for zone_range, zone in sorted(given, key=lambda each: each[0].min_key):
        if zone_range.min_key < end_key:
            raise CommandError(
                ErrorCode.RangeOverlapConflict, f"The range {zone_range} of zone {zone} overlaps another"
            )
        if end_key < zone_range.min_key:
            yield ZonePart(ChunkRange(end, zone_range.min, end_key, zone_range.min_key), NO_ZONE)
        yield ZonePart(zone_range, zone)
        end, end_key = zone_range.max, zone_range.max_key
    if end_key < pattern.global_max_bytes():
        yield ZonePart(ChunkRange(end, pattern.global_max(), end_key, pattern.global_max_bytes()), NO_ZONE)
