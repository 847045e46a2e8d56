"""First chunks of a collection whose zones were defined before it is sharded.

Every zone range becomes one chunk or, with ``presplitHashedZones``, several; what lies between zones becomes one chunk
for each hole. This follows MongoDB 6.0.5.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle, pairwise
from typing import Final, NamedTuple, TypeAlias

from shardwright.sharding.hashed_split_points import hashed_split_points
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire import rawbson
from shardwright.wire.errors import CommandError

NOT_PRESPLITTABLE: Final = 31387
PREFIX_IS_EXTREME: Final = 31388
HASHED_BOUND_NOT_MIN: Final = 31389
PREFIX_NOT_RISING: Final = 31390
SUFFIX_NOT_MIN: Final = 31391
ZONE_NOT_GLOBAL: Final = 31412
ZONE_WITHOUT_SHARDS: Final = 50973

_CHUNKS_PER_SHARD_DEFAULT: Final = 2
_ZONES_UNFIT: Final = "One or more zones are not defined in a manner that supports hashed pre-splitting."


class ZoneRange(NamedTuple):
    """A range of ``config.tags``, its bounds full shard keys."""

    min: bytes
    max: bytes
    zone: str


_Plan: TypeAlias = Iterator[tuple[bytes, bytes, str]]
_ZoneCut: TypeAlias = tuple[Sequence[bytes], Sequence[str]]  # split points inside the zone, and the shard of each part


def single_chunk_zone_plan(
    pattern: ShardKeyPattern,
    zones: Sequence[ZoneRange],
    shards_of_zone: Mapping[str, Sequence[str]],
    shards: Sequence[str],
) -> _Plan:
    """One chunk for each zone range, on the zone's shards in turn; yields ``(min, max, shard)`` in order.

    Raises:
        CommandError: 50973, a zone has no shard.
    """
    turns: dict[str, Iterator[str]] = {zone.zone: cycle(_shards_of(zone, shards_of_zone)) for zone in zones}
    return _fill_holes(pattern, zones, shards, lambda zone: ((), [next(turns[zone.zone])]))


def presplit_zone_plan(
    pattern: ShardKeyPattern,
    zones: Sequence[ZoneRange],
    shards_of_zone: Mapping[str, Sequence[str]],
    shards: Sequence[str],
    num_initial_chunks: int,
    is_empty: bool,
) -> _Plan:
    """Chunks of even hash ranges in each zone, about equally many on each shard regardless of its zones.

    Plans at least ``num_initial_chunks`` in all; 0 stands for two on each shard that has a zone.

    Raises:
        CommandError: 31387 to 31391 or 31412, the zones cannot be cut by hash; 50973, a zone
            has no shard.
    """
    _check_presplittable(pattern, zones, is_empty)
    zones_on_shard = Counter(shard for zone in zones for shard in _shards_of(zone, shards_of_zone))
    wanted = num_initial_chunks or _CHUNKS_PER_SHARD_DEFAULT * len(zones_on_shard)
    chunks_per_shard = -(-wanted // len(zones_on_shard))

    def cut(zone: ZoneRange) -> _ZoneCut:
        owners = [
            shard
            for shard in _shards_of(zone, shards_of_zone)
            for _ in range(-(-chunks_per_shard // zones_on_shard[shard]))
        ]
        return hashed_split_points(pattern, len(owners), _fields_before_hashed(pattern, zone.min)), owners

    return _fill_holes(pattern, zones, shards, cut)


def _fill_holes(
    pattern: ShardKeyPattern, zones: Sequence[ZoneRange], shards: Sequence[str], cut: Callable[[ZoneRange], _ZoneCut]
) -> _Plan:
    hole_owners = cycle(shards)
    covered = pattern.global_min()
    for zone in zones:
        if pattern.key_bytes(zone.min) > pattern.key_bytes(covered):
            yield covered, zone.min, next(hole_owners)
        points, owners = cut(zone)
        for (low, high), owner in zip(pairwise([zone.min, *points, zone.max]), owners, strict=True):
            yield low, high, owner
        covered = zone.max
    if pattern.key_bytes(covered) < pattern.global_max_bytes():
        yield covered, pattern.global_max(), next(hole_owners)


def _shards_of(zone: ZoneRange, shards_of_zone: Mapping[str, Sequence[str]]) -> Sequence[str]:
    shards = shards_of_zone.get(zone.zone, ())
    if not shards:
        raise CommandError(
            ZONE_WITHOUT_SHARDS,
            f"Cannot shard the collection due to zone {zone.zone} which is not assigned to a shard."
            " Please assign this zone to a shard.",
        )
    return shards


def _fields_before_hashed(pattern: ShardKeyPattern, bound: bytes) -> bytes:
    hashed = pattern.hashed_field
    elements = []
    for name, (_, start, _, end) in rawbson.spans(bound):
        if hashed is not None and name == hashed.name:
            break
        elements.append(bound[start:end])
    return rawbson.from_elements(b"".join(elements))


def _check_presplittable(pattern: ShardKeyPattern, zones: Sequence[ZoneRange], is_empty: bool) -> None:
    if not (is_empty and zones and pattern.hashed_field):
        raise CommandError(
            NOT_PRESPLITTABLE,
            "'presplitHashedZones' is only supported when the collection is empty, zones are set up and shard key"
            " pattern has a hashed field",
        )
    if not pattern.fields[0].hashed:
        for zone in zones:
            _check_zone(pattern, zone)
    elif not (
        len(zones) == 1
        and pattern.key_bytes(zones[0].min) == pattern.global_min_bytes()
        and pattern.key_bytes(zones[0].max) == pattern.global_max_bytes()
    ):
        raise CommandError(
            ZONE_NOT_GLOBAL,
            "For hashed prefix shard keys, 'presplitHashedZones' is only supported when there is a single zone defined"
            " which covers entire shard key range",
        )


def _check_zone(pattern: ShardKeyPattern, zone: ZoneRange) -> None:
    """The prefix before the hashed field is an ordinary value that rises; from there on the lower bound is MinKey."""
    kinds = [span[0] for _, span in rawbson.spans(zone.min)]
    hashed = next(n for n, each in enumerate(pattern.fields) if each.hashed)
    if any(kind in (rawbson.MIN_KEY, rawbson.MAX_KEY) for kind in kinds[:hashed]):
        raise CommandError(
            PREFIX_IS_EXTREME,
            f"{_ZONES_UNFIT} Cannot have MinKey or MaxKey in the lower bound for fields preceding the hashed field but"
            f" found one, for zone {zone.zone}",
        )
    low, high = (pattern.key_bytes(_fields_before_hashed(pattern, bound)) for bound in (zone.min, zone.max))
    if low == high:
        raise CommandError(
            PREFIX_NOT_RISING,
            f"{_ZONES_UNFIT} The value preceding hashed field of the upper bound should be greater than that of lower"
            f" bound, for zone {zone.zone}",
        )
    if kinds[hashed] != rawbson.MIN_KEY:
        raise CommandError(
            HASHED_BOUND_NOT_MIN,
            f"{_ZONES_UNFIT} The hashed field value for lower bound must be MinKey, for zone {zone.zone}",
        )
    if any(kind != rawbson.MIN_KEY for kind in kinds[hashed + 1 :]):
        raise CommandError(
            SUFFIX_NOT_MIN,
            f"{_ZONES_UNFIT} The fields after the hashed field must have MinKey value, for zone {zone.zone}",
        )
