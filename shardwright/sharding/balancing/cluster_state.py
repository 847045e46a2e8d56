"""Input and output of the policy: shards, collections, zones, queries of chunks; and decisions with their reasons.

Queries avoid loading all chunks. The policy consists of generators: they yield a `Question`, are sent its `Answer`, and
return their result. The caller looks chunks up in an index of ``config.chunks``, or, in a simulation, in a list.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Final, TypeAlias, TypeVar

from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import raw_document

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


@dataclass(frozen=True, slots=True)
class Candidate:
    """A chunk that may be split or moved."""

    range: ChunkRange
    shard: str


@dataclass(frozen=True, slots=True)
class FirstChunk:
    """Query for the first chunk of a shard that begins in one of the given ranges.

    Attributes:
        within: the ranges, in order; None for all keys.
        is_movable: True to consider only chunks that are neither jumbo nor held back after a failed move; False for
            only the others.
    """

    namespace: Namespace
    shard: str
    within: tuple[ChunkRange, ...] | None
    is_movable: bool = True


@dataclass(frozen=True, slots=True)
class ChunkCounts:
    """Query for the number of each shard's chunks that begin in the given ranges; None for all keys."""

    namespace: Namespace
    within: tuple[ChunkRange, ...] | None


@dataclass(frozen=True, slots=True)
class ChunksAcross:
    """Query for the chunks that contain a bound of a zone in their interior."""

    namespace: Namespace
    zones: ZoneMap


Question: TypeAlias = FirstChunk | ChunkCounts | ChunksAcross


@dataclass(frozen=True, slots=True)
class Answer:
    """The chunks, or the counts by shard (a shard that is missing has none)."""

    chunks: tuple[Candidate, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)


Result = TypeVar("Result")
Asking: TypeAlias = Generator[Question, Answer, Result]


def ask_first_chunk(question: FirstChunk) -> Asking[Candidate | None]:
    """Query the first chunk; return None if there is none."""
    if question.within == ():
        return None
    answer = yield question
    return answer.chunks[0] if answer.chunks else None


def ask_counts(question: ChunkCounts) -> Asking[Mapping[str, int]]:
    """Query the number of chunks by shard."""
    answer = yield question
    return answer.counts


class ForceJumbo(Enum):
    """A shard's treatment of a chunk that is larger than the limit, with the values of ``forceJumbo``."""

    NO = 0
    BALANCER = 2


class Policy(Enum):
    """The quantity that the balancer evens out."""

    DATA_SIZE = "dataSize"
    CHUNK_COUNT = "chunkCount"


@dataclass(frozen=True, slots=True)
class ShardState:
    """A shard.

    Attributes:
        is_available: its statistics could be read in this round; without them, nothing is moved from or to it.
    """

    id: str
    zones: frozenset[str] = frozenset()
    is_draining: bool = False
    is_available: bool = True

    def may_own(self, zone: str) -> bool:
        """Whether chunks of a zone, or of `NO_ZONE`, may stay on the shard."""
        return zone == NO_ZONE or zone in self.zones

    def may_receive(self, zone: str) -> bool:
        """Whether chunks of a zone, or of `NO_ZONE`, may be moved to the shard."""
        return self.is_available and not self.is_draining and self.may_own(zone)


@dataclass(frozen=True, slots=True)
class CollectionState:
    """A sharded collection.

    Attributes:
        sizes: bytes of its documents on each shard, without orphans; a shard that is missing has none.
        chunk_bytes_max: the size above which a chunk is too large; also the amount of one move of data.
        why_skipped: why the balancer must not touch it; empty if it may.
    """

    namespace: Namespace
    zones: ZoneMap
    sizes: Mapping[str, int] = field(default_factory=dict)
    chunk_bytes_max: int = 128 << 20
    why_skipped: str = ""

    def size_on(self, shard: str) -> int:
        """Return the bytes of its documents on a shard."""
        return self.sizes.get(shard, 0)


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The complete input of a round.

    Attributes:
        shards: all shards, in the order of their names.
        force_jumbo: ``attemptToBalanceJumboChunks``: whether whole chunks are moved even if they are too large.
    """

    shards: tuple[ShardState, ...]
    policy: Policy = Policy.DATA_SIZE
    force_jumbo: ForceJumbo = ForceJumbo.NO


class Rule(Enum):
    """Reason to split, move, merge or measure a chunk; the values are MongoDB's where it reports them.

    The last three are the phases of defragmentation.
    """

    ZONE_BOUNDARY = "zoneBoundary"
    DRAINING = "draining"
    ZONE_VIOLATION = "zoneViolation"
    IMBALANCE = "chunksImbalance"
    HOT_END = "hotEnd"
    MERGE_AND_MEASURE = "mergeAndMeasureChunks"
    MOVE_AND_MERGE = "moveAndMergeChunks"
    MERGE = "mergeChunks"


@dataclass(frozen=True, slots=True)
class Split:
    """Split a chunk that contains bounds of zones."""

    namespace: Namespace
    chunk: Candidate
    points: tuple[bytes, ...]

    def to_document(self) -> dict[str, Any]:
        """Build the document for commands and the log."""
        return {
            "action": "split",
            "ns": str(self.namespace),
            "shard": self.chunk.shard,
            **self.chunk.range.to_document(),
            "splitKeys": [raw_document(point) for point in self.points],
            "rule": Rule.ZONE_BOUNDARY.value,
        }


@dataclass(frozen=True, slots=True)
class Move:
    """Move a chunk, or, to even out data sizes, the part from its beginning with the size of one chunk.

    Attributes:
        force_jumbo: the treatment of a chunk that is too large.
        zone: of its keys; empty if none.
        numbers: the numbers that the rule compared.
    """

    namespace: Namespace
    chunk: Candidate
    recipient: str
    rule: Rule
    is_whole: bool
    force_jumbo: ForceJumbo = ForceJumbo.NO
    zone: str = ""
    numbers: Mapping[str, int] = field(default_factory=dict)

    @property
    def donor(self) -> str:
        """Present shard of the chunk."""
        return self.chunk.shard

    def to_document(self) -> dict[str, Any]:
        """Build the document for commands and the log."""
        bounds = self.chunk.range.to_document()
        return {
            "action": "moveChunk" if self.is_whole else "moveRange",
            "ns": str(self.namespace),
            "from": self.donor,
            "to": self.recipient,
            **(bounds if self.is_whole else {"min": bounds["min"]}),
            "rule": self.rule.value,
            **({"zone": self.zone} if self.zone else {}),
            **self.numbers,
        }


@dataclass(frozen=True, slots=True)
class _InPlace:
    """A step of defragmentation on one shard.

    Attributes:
        zone: of its keys; empty if none.
        numbers: the numbers that the rule compared.
    """

    namespace: Namespace
    chunk: Candidate
    rule: Rule
    zone: str = ""
    numbers: Mapping[str, int] = field(default_factory=dict)

    action: ClassVar[str]

    def to_document(self) -> dict[str, Any]:
        """Build the document for commands and the log."""
        return {
            "action": self.action,
            "ns": str(self.namespace),
            "shard": self.chunk.shard,
            **self.chunk.range.to_document(),
            "rule": self.rule.value,
            **({"zone": self.zone} if self.zone else {}),
            **self.numbers,
        }


class Merge(_InPlace):
    """Merge chunks of one shard that follow each other; ``chunk`` is the result."""

    __slots__ = ()
    action: ClassVar[str] = "mergeChunks"


class Measure(_InPlace):
    """Measure a chunk on its shard to decide whether to move it."""

    __slots__ = ()
    action: ClassVar[str] = "measureChunk"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A step that a rule would have taken, had there not been a reason against it."""

    namespace: Namespace
    reason: str
    rule: Rule | None = None
    shard: str = ""
    zone: str = ""
    range: ChunkRange | None = None
    """The one chunk that it concerns."""

    def to_document(self) -> dict[str, Any]:
        """Build the document for commands and the log."""
        return {
            "ns": str(self.namespace),
            **({"rule": self.rule.value} if self.rule is not None else {}),
            **({"shard": self.shard} if self.shard else {}),
            **({"zone": self.zone} if self.zone else {}),
            **(self.range.to_document() if self.range is not None else {}),
            "reason": self.reason,
        }


@dataclass(slots=True)
class Decisions:
    """The result of a rule, a collection or a whole round, in the order of the decisions."""

    splits: list[Split] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
