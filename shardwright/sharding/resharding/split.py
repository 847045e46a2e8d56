"""The chunks of a collection by its new shard key: their bounds and their shards.

The rules are MongoDB 6.0's. Split points are the bounds of zones, then keys of sampled documents until there are enough
chunks. Each chunk goes to the shard of its zone that has the fewest so far.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

from shardwright.sharding.initial_chunks import PlannedChunk, ZoneRange
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.errors import CommandError

TOO_FEW_KEYS: Final = 4952606
ZONE_WITHOUT_SHARDS: Final = 4952607
SAMPLES_PER_CHUNK: Final = 10
"""Number of documents that MongoDB samples for each split point."""


def plan_chunks(
    pattern: ShardKeyPattern,
    count: int,
    samples: Iterable[bytes],
    shards: Sequence[str],
    zones: Sequence[ZoneRange] = (),
    shards_of_zone: Mapping[str, Sequence[str]] | None = None,
) -> list[PlannedChunk]:
    """Plan the chunks of the new key.

    Args:
        count: the requested number of chunks; zones may require more.
        samples: raw shard keys of sampled documents, in any order.
        shards: ids of all shards that may get chunks.

    Raises:
        CommandError: 4952606, the samples have too few different keys; 4952607, a zone has no shard.
    """
    ordered = sorted(zones, key=lambda each: pattern.key_bytes(each.min))
    points = {pattern.key_bytes(bound): bound for zone in ordered for bound in (zone.min, zone.max)}
    for extreme in (pattern.global_min_bytes(), pattern.global_max_bytes()):
        points.pop(extreme, None)
    missing = count - 1 - len(points)
    if missing > 0:
        points |= _sampled_points(pattern, missing, samples, points)
    bounds = [pattern.global_min(), *(points[key] for key in sorted(points)), pattern.global_max()]
    owners = _Owners(pattern, shards, ordered, shards_of_zone or {})
    return [PlannedChunk(low, high, owners.take(low)) for low, high in pairwise(bounds)]


def _sampled_points(
    pattern: ShardKeyPattern, count: int, samples: Iterable[bytes], taken: Mapping[bytes, bytes]
) -> dict[bytes, bytes]:
    """Choose evenly spaced keys from the samples; raise 4952606 if there are not enough."""
    keys = sorted(pattern.key_bytes(each) for each in samples)
    document_of = {pattern.key_bytes(each): each for each in samples}
    unusable = {*taken, pattern.global_min_bytes()}
    chosen = {keys[(position + 1) * len(keys) // (count + 1)]: None for position in range(count)} if keys else {}
    found = [key for key in chosen if key not in unusable]
    # For a frequent key, several points coincide: any other key will do for the rest.
    others = (key for key in dict.fromkeys(keys) if key not in unusable and key not in chosen)
    while len(found) < count and (another := next(others, None)) is not None:
        found.append(another)
    if len(found) < count:
        raise CommandError(
            TOO_FEW_KEYS,
            "The shard key provided does not have enough cardinality to make the required amount of chunks",
        )
    return {key: document_of[key] for key in found}


class _Owners:
    """Assignment of chunks to shards."""

    def __init__(
        self,
        pattern: ShardKeyPattern,
        shards: Sequence[str],
        zones: Sequence[ZoneRange],
        shards_of_zone: Mapping[str, Sequence[str]],
    ) -> None:
        self._pattern = pattern
        self._shards = sorted(shards)
        self._zones = zones
        self._lows = [pattern.key_bytes(zone.min) for zone in zones]
        self._shards_of_zone = {zone: sorted(names) for zone, names in shards_of_zone.items()}
        self._chunks: Counter[str] = Counter()

    def take(self, low: bytes) -> str:
        """Choose the shard of the chunk that begins at ``low``, and count the chunk."""
        shard = min(self._candidates(self._pattern.key_bytes(low)), key=lambda each: self._chunks[each])
        self._chunks[shard] += 1
        return shard

    def _candidates(self, low: bytes) -> Sequence[str]:
        position = bisect_right(self._lows, low) - 1
        if position < 0 or low >= self._pattern.key_bytes(self._zones[position].max):
            return self._shards
        zone = self._zones[position].zone
        if not self._shards_of_zone.get(zone):
            raise CommandError(ZONE_WITHOUT_SHARDS, f"Specified zone {zone} does not belong to any shard")
        return self._shards_of_zone[zone]
