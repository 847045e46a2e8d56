"""The first chunks of a collection that is being sharded: where they are split and which shards they are placed on.

The policies are those of MongoDB 6.0.5: one chunk on the primary shard, unless the collection is empty and either its
key begins with a hashed field, or zones are defined for it, or the caller supplies split points.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple
from uuid import UUID

from bson.objectid import ObjectId

from shardwright.sharding.chunks import Chunk, ChunkHistory
from shardwright.sharding.hashed_split_points import hashed_split_points
from shardwright.sharding.presplit_zones import ZoneRange, presplit_zone_plan, single_chunk_zone_plan
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.versions import ChunkVersion
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

CHUNKS_PER_SHARD_DEFAULT: Final = 2
NUM_INITIAL_CHUNKS_MAX: Final = 1_000_000
NUM_INITIAL_CHUNKS_PER_SHARD_MAX: Final = 8192


@dataclass(frozen=True, slots=True)
class InitialPlacement:
    """What determines the first chunks.

    Args:
        pattern: the shard key.
        primary_shard: of the database.
        shards: ids of all shards that take chunks.
        is_empty: whether the collection has no documents.
        zones: the ranges of ``config.tags`` for the collection, in order.
        shards_of_zone: ids of the shards of each zone, in the order of ``config.shards``.
        num_initial_chunks: as requested by the user; 0 if not given.
        presplit_hashed_zones: as requested by the user.
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
        """Refuse options that exclude one another.

        Raises:
            CommandError: InvalidOptions.
        """
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
    """Decide where the first chunks begin, end and lie.

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
    """The chunks of a plan, with versions rising by one minor from ``first_version``, which is 1|0.

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
    """Chunks between split points, going round the shards with ``contiguous`` chunks for each in its turn.

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
