"""The first chunks of a collection that is being sharded or resharded: their split points and their shards.

Every zone range becomes one chunk or, with ``presplitHashedZones``, several. Each hole between zones becomes one chunk.

The policies are MongoDB 6.0.5's. The default is one chunk on the primary shard. Split points of the caller give more
chunks. So do zones, or a hashed field at the beginning of the key, if the collection is empty.

**Resharding** (`plan_chunks`). Split points are the bounds of zones, then keys of sampled documents until there are
enough chunks. Each chunk goes to the shard of its zone that has the fewest so far.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, pairwise
from struct import Struct
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from bson.objectid import ObjectId

from shardwright.sharding.chunks import Chunk, ChunkHistory
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.versions import ChunkVersion
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

_INT64_MAX: Final = (1 << 63) - 1
_pack_int64: Final = Struct("<q").pack

TOO_FEW_KEYS: Final = 4952606
RESHARDING_ZONE_WITHOUT_SHARDS: Final = 4952607
SAMPLES_PER_CHUNK: Final = 10
"""Number of documents that MongoDB samples for each split point."""


def hashed_split_points(
    pattern: ShardKeyPattern, chunk_count: int, prefix: bytes = rawbson.EMPTY_DOCUMENT
) -> list[bytes]:
    """Return the bounds between ``chunk_count`` chunks, at least 1, that share the hash values evenly, in order.

    They lie symmetrically around zero, exactly where MongoDB cuts. ``prefix`` has values of the fields before the
    hashed one; the fields after it begin at MinKey.
    """
    interval = _INT64_MAX // chunk_count * 2
    first = 0 if chunk_count % 2 == 0 else interval // 2
    positive = [first + n * interval for n in range(chunk_count // 2)]
    values = sorted({sign * value for value in positive for sign in (-1, 1)})
    return [_bound(pattern, prefix, value) for value in values]


def _bound(pattern: ShardKeyPattern, prefix: bytes, value: int) -> bytes:
    names = [each.name for each in pattern.fields]
    hashed = next(n for n, each in enumerate(pattern.fields) if each.hashed)
    elements = rawbson.element(names[hashed], rawbson.INT64, _pack_int64(value))
    elements += b"".join([rawbson.element(name, rawbson.MIN_KEY, b"") for name in names[hashed + 1 :]])
    return rawbson.append(prefix, elements)


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
    """Plan one chunk for each zone range, on the zone's shards in turn; yield ``(min, max, shard)`` in order.

    Raises 50973 if a zone has no shard.
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
    """Plan chunks of even hash ranges in each zone, about equally many on each shard regardless of its zones.

    Plans at least ``num_initial_chunks`` in all; 0 stands for two on each shard that has a zone.

    Raises:
        CommandError: 31387 to 31391 or 31412, the zones cannot be cut by hash; 50973, a zone has no shard.
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
    """Require an ordinary, rising prefix before the hashed field, and MinKey in the rest of the lower bound."""
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


CHUNKS_PER_SHARD_DEFAULT: Final = 2
NUM_INITIAL_CHUNKS_MAX: Final = 1_000_000
NUM_INITIAL_CHUNKS_PER_SHARD_MAX: Final = 8192


@dataclass(frozen=True, slots=True)
class InitialPlacement:
    """The input of the plan for the first chunks.

    Args:
        shards: ids of all shards that take chunks.
        zones: the ranges of ``config.tags`` for the collection, in order.
        shards_of_zone: ids of the shards of each zone, in the order of ``config.shards``.
        num_initial_chunks: as requested by the user; 0 if not given.
        split_points: bounds supplied by the caller, or None.
    """

    pattern: ShardKeyPattern
    primary_shard: str
    shards: Sequence[str]
    is_empty: bool
    zones: Sequence[ZoneRange] = ()
    shards_of_zone: Mapping[str, Sequence[str]] = field(default_factory=dict)
    num_initial_chunks: int = 0
    presplit_hashed_zones: bool = False
    split_points: Sequence[bytes] | None = None

    def check(self) -> None:
        """Raise InvalidOptions for options that exclude one another."""
        limit = min(NUM_INITIAL_CHUNKS_PER_SHARD_MAX * len(self.shards), NUM_INITIAL_CHUNKS_MAX)
        if not 0 <= self.num_initial_chunks <= limit:
            raise CommandError(
                ErrorCode.InvalidOptions,
                f"numInitialChunks cannot be more than either: {NUM_INITIAL_CHUNKS_PER_SHARD_MAX * len(self.shards)},"
                f" {NUM_INITIAL_CHUNKS_PER_SHARD_MAX} * number of shards; or {NUM_INITIAL_CHUNKS_MAX}",
            )
        if self.num_initial_chunks and not (self.is_empty and self.pattern.hashed_field):
            raise CommandError(
                ErrorCode.InvalidOptions,
                "numInitialChunks is only supported when the collection is empty and has a hashed field in the shard"
                " key pattern",
            )
        if self.num_initial_chunks and not (self._has_hashed_prefix or self.presplit_hashed_zones):
            raise CommandError(
                ErrorCode.InvalidOptions,
                "When the prefix of the hashed shard key is a range field, 'numInitialChunks' can only be used when the"
                " 'presplitHashedZones' is true",
            )
        if self.split_points is not None and self.zones:
            raise CommandError(ErrorCode.InvalidOptions, "Cannot have both initial split points and tags set")

    @property
    def _has_hashed_prefix(self) -> bool:
        return self.pattern.fields[0].hashed


class PlannedChunk(NamedTuple):
    """A chunk to be created."""

    min: bytes
    max: bytes
    shard: str


def plan_initial_chunks(placement: InitialPlacement) -> list[PlannedChunk]:
    """Plan the first chunks: their bounds and their shards.

    Raises:
        CommandError: InvalidOptions for options that exclude one another; 31387 to 31391 and 31412 for zones that
            cannot be pre-split; 50973 for a zone without shards.
    """
    placement.check()
    pattern, shards = placement.pattern, sorted(placement.shards)
    if placement.presplit_hashed_zones:
        plan = presplit_zone_plan(
            pattern, placement.zones, placement.shards_of_zone, shards, placement.num_initial_chunks, placement.is_empty
        )
        return [PlannedChunk(*each) for each in plan]
    if placement.split_points is not None:
        return _cut(placement, placement.split_points, contiguous=1)
    if placement.is_empty and placement.zones:
        plan = single_chunk_zone_plan(pattern, placement.zones, placement.shards_of_zone, shards)
        return [PlannedChunk(*each) for each in plan]
    if placement.is_empty and placement._has_hashed_prefix:
        count = placement.num_initial_chunks or CHUNKS_PER_SHARD_DEFAULT * len(shards)
        return _cut(placement, hashed_split_points(pattern, count), contiguous=max(count // len(shards), 1))
    return [PlannedChunk(pattern.global_min(), pattern.global_max(), placement.primary_shard)]


def make_initial_chunks(
    plan: Sequence[PlannedChunk], *, uuid: UUID, first_version: ChunkVersion, new_id: Callable[[], ObjectId]
) -> list[Chunk]:
    """Build the chunks of a plan, with versions rising by one minor from ``first_version``, which is 1|0.

    Their history begins at the timestamp of the collection.
    """
    return [
        Chunk(
            id=new_id(),
            uuid=uuid,
            min=each.min,
            max=each.max,
            shard=each.shard,
            version=first_version.with_minor_raised(n),
            history=(ChunkHistory(first_version.timestamp, each.shard),),
        )
        for n, each in enumerate(plan)
    ]


def _cut(placement: InitialPlacement, split_points: Sequence[bytes], contiguous: int) -> list[PlannedChunk]:
    """Plan chunks between split points, giving ``contiguous`` chunks to each shard in turn.

    If there are fewer chunks than shards, the first goes to the primary shard, so that it always has one.
    """
    pattern, shards = placement.pattern, sorted(placement.shards)
    points = sorted({pattern.key_bytes(point): point for point in split_points}.items())
    bounds = [pattern.global_min(), *(point for _, point in points), pattern.global_max()]
    return [
        PlannedChunk(
            low,
            high,
            placement.primary_shard
            if n == 0 and len(bounds) - 1 < len(shards)
            else shards[n // contiguous % len(shards)],
        )
        for n, (low, high) in enumerate(pairwise(bounds))
    ]


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
            raise CommandError(RESHARDING_ZONE_WITHOUT_SHARDS, f"Specified zone {zone} does not belong to any shard")
        return self._shards_of_zone[zone]
