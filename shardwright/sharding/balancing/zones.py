"""The zones of one collection: which keys belong to which zone, or to none."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.shard_key import ShardKeyPattern

NO_ZONE: Final = ""
"""Stands for keys that belong to no zone: every shard may own them."""


@dataclass(frozen=True, slots=True)
class ZonePart:
    """A range of keys that belong to one zone, or to `NO_ZONE`."""

    range: ChunkRange
    zone: str


class ZoneMap:
    """The whole key space of a collection, divided into parts by the ranges of its zones."""

    def __init__(self, pattern: ShardKeyPattern, zones: Iterable[tuple[bytes, bytes, str]] = ()) -> None:
        """Divide the key space.

        Args:
            pattern: the shard key.
            zones: lower bound, upper bound (both full shard keys) and zone of each range; ranges do not overlap.
        """
        self.parts = tuple(_divide(pattern, zones))
        self._starts = [part.range.min_key for part in self.parts]

    @property
    def has_zones(self) -> bool:
        """Whether any key belongs to a zone."""
        return len(self.parts) > 1 or self.parts[0].zone != NO_ZONE

    @property
    def zones(self) -> tuple[str, ...]:
        """The zones, in the order of their first ranges; `NO_ZONE` is not among them."""
        return tuple(dict.fromkeys(part.zone for part in self.parts if part.zone != NO_ZONE))

    @property
    def bounds(self) -> tuple[ChunkRange, ...]:
        """The parts after the first one, each of which has to begin with a chunk."""
        return tuple(part.range for part in self.parts[1:])

    def zone_of(self, key: bytes) -> str:
        """The zone of a key, given as key bytes."""
        return self.parts[bisect_right(self._starts, key) - 1].zone

    def ranges(self, zones: frozenset[str]) -> tuple[ChunkRange, ...] | None:
        """The ranges of the given zones; None for all keys if these are all zones of the collection."""
        if all(part.zone in zones for part in self.parts):
            return None
        return tuple(part.range for part in self.parts if part.zone in zones)

    def bounds_inside(self, chunk: ChunkRange) -> tuple[bytes, ...]:
        """The keys at which a chunk has to be split, so that all keys of each part belong to the same zone."""
        first, end = bisect_right(self._starts, chunk.min_key), bisect_left(self._starts, chunk.max_key)
        return tuple(part.range.min for part in self.parts[first:end])


def _divide(pattern: ShardKeyPattern, zones: Iterable[tuple[bytes, bytes, str]]) -> Iterable[ZonePart]:
    given = sorted((pattern.key_bytes(low), pattern.key_bytes(high), low, high, zone) for low, high, zone in zones)
    least, greatest = pattern.global_min(), pattern.global_max()
    edges = [(least, pattern.key_bytes(least))]
    parts: list[ZonePart] = []
    for low_key, high_key, low, high, zone in given:
        end, end_key = edges[-1]
        if end_key < low_key:
            parts.append(ZonePart(ChunkRange(end, low, end_key, low_key), NO_ZONE))
        parts.append(ZonePart(ChunkRange(low, high, low_key, high_key), zone))
        edges.append((high, high_key))
    end, end_key = edges[-1]
    greatest_key = pattern.key_bytes(greatest)
    if end_key < greatest_key:
        parts.append(ZonePart(ChunkRange(end, greatest, end_key, greatest_key), NO_ZONE))
    assert all(left.range.max_key == right.range.min_key for left, right in pairwise(parts)), "zones overlap"
    return parts
