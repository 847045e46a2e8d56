"""Defragmentation: the merges of chunks, and the moves of small chunks to a neighbour, each with its reason.

The phases are MongoDB's. First, neighbouring chunks on the same shard are merged and measured. Then small chunks go to
the shard of a neighbour and are merged with it. Finally, chunks that have become mergeable are merged.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from shardwright.sharding.balancing.cluster_state import Candidate, Measure, Merge, Move, Rule, Skipped, ZoneMap
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.namespace import Namespace

SMALL_FRACTION: Final = 0.25
"""Fraction of the chunk size below which a chunk is small."""

LARGE_BYTES: Final = (1 << 63) - 1
"""Recorded size of chunks that are not small, whose size does not matter."""


class Phase(Enum):
    """The phases in their order, as ``defragmentationPhase`` stores them."""

    MERGE_AND_MEASURE = "mergeAndMeasureChunks"
    MOVE_AND_MERGE = "moveAndMergeChunks"
    MERGE = "mergeChunks"

    @property
    def next(self) -> "Phase | None":
        """The phase after this one; None if this is the last."""
        phases = list(Phase)
        following = phases.index(self) + 1
        return phases[following] if following < len(phases) else None


@dataclass(frozen=True, slots=True)
class MeasuredChunk:
    """A chunk with its recorded size in bytes: `LARGE_BYTES` if it is not small, None if it has none yet."""

    range: ChunkRange
    shard: str
    size: int | None = None


def small_bytes(chunk_bytes_max: int) -> int:
    """Return the size from which on a chunk is not small."""
    return int(chunk_bytes_max * SMALL_FRACTION)


def runs(chunks: Iterable[MeasuredChunk], zones: ZoneMap) -> Iterator[list[MeasuredChunk]]:
    """Divide all chunks, in order, into mergeable runs: next to each other, on one shard and in one zone."""
    run: list[MeasuredChunk] = []
    for chunk in chunks:
        if run and not _are_mergeable(run[-1], chunk, zones):
            yield run
            run = []
        run.append(chunk)
    if run:
        yield run


def _are_mergeable(low: MeasuredChunk, high: MeasuredChunk, zones: ZoneMap) -> bool:
    return low.shard == high.shard and _are_neighbours(low, high, zones)


def _are_neighbours(low: MeasuredChunk, high: MeasuredChunk, zones: ZoneMap) -> bool:
    """Whether two chunks touch, and zones allow them to be one chunk."""
    same_zone = zones.zone_of(low.range.min_key) == zones.zone_of(high.range.min_key)
    inside = not zones.bounds_inside(low.range) and not zones.bounds_inside(high.range)
    return low.range.max_key == high.range.min_key and same_zone and inside


def merged_size(chunks: Iterable[MeasuredChunk], threshold: int) -> int | None:
    """Return the size of several chunks together; None if one of them has not been measured."""
    total = 0
    for chunk in chunks:
        if chunk.size is None:
            return None
        total += chunk.size
    return total if total < threshold else LARGE_BYTES


@dataclass(frozen=True, slots=True)
class Union:
    """Move a small chunk to a neighbour's shard, unless it is there already, and merge it with its neighbours there.

    Attributes:
        parts: the chunks that become one, in order, including the small chunk.
    """

    chunk: MeasuredChunk
    recipient: str
    parts: tuple[MeasuredChunk, ...]

    @property
    def is_move(self) -> bool:
        """Whether the chunk has to be moved first."""
        return self.chunk.shard != self.recipient


def choose_union(
    chunk: MeasuredChunk,
    neighbours: Sequence[MeasuredChunk],
    zones: ZoneMap,
    may_receive: Callable[[str, str], bool],
    threshold: int,
) -> Union | None:
    """Choose the union of a small chunk with neighbours; None if no neighbour can take it.

    The best neighbour is one on the same shard, then one that is not smaller than the chunk, then one with which the
    chunk is not small any more. Among equals, both neighbours on one shard are better than one, and then the lower one
    is better.

    Args:
        neighbours: the chunks that touch it, one or two, in order.
        threshold: the size from which on a chunk is not small.
    """
    zone = zones.zone_of(chunk.range.min_key)
    unions = [
        _union(chunk, neighbours, shard, zones)
        for shard in dict.fromkeys(each.shard for each in neighbours)
        if shard == chunk.shard or may_receive(shard, zone)
    ]
    possible = [each for each in unions if len(each.parts) > 1]
    return max(possible, key=lambda each: _rank(each, threshold), default=None)


def _union(chunk: MeasuredChunk, neighbours: Sequence[MeasuredChunk], shard: str, zones: ZoneMap) -> Union:
    parts = [chunk]
    for each in neighbours:
        if each.shard != shard:
            continue
        if _are_neighbours(each, chunk, zones):
            parts.insert(0, each)
        elif _are_neighbours(chunk, each, zones):
            parts.append(each)
    return Union(chunk, shard, tuple(parts))


def _rank(union: Union, threshold: int) -> tuple[bool, bool, bool, int]:
    size = union.chunk.size or 0
    others = [each.size for each in union.parts if each is not union.chunk]
    is_to_larger = any(other is None or other >= size for other in others)
    together = merged_size(union.parts, threshold)
    return not union.is_move, is_to_larger, together is None or together >= threshold, len(union.parts)


UNKNOWN_SHARD = "there is no such shard"
WAITS_FOR_NEIGHBOUR = "what becomes of it is decided when its neighbour has been merged"


def merge_of(
    namespace: Namespace, parts: Sequence[MeasuredChunk], shard: str, zones: ZoneMap, threshold: int, rule: Rule
) -> Merge:
    """Build the merge of chunks that follow each other and are, or will be by then, on one shard."""
    low, high = parts[0].range, parts[-1].range
    whole = Candidate(ChunkRange(low.min, high.max, low.min_key, high.max_key), shard)
    numbers = {"chunks": len(parts), **_if_small("bytes", parts, threshold)}
    return Merge(namespace, whole, rule, zones.zone_of(low.min_key), numbers)


def measurement_of(namespace: Namespace, chunk: MeasuredChunk, zones: ZoneMap, threshold: int) -> Measure:
    """Build the measurement of a chunk without a recorded size."""
    zone = zones.zone_of(chunk.range.min_key)
    return Measure(namespace, _candidate(chunk), Rule.MERGE_AND_MEASURE, zone, {"smallBelowBytes": threshold})


def steps_of_run(
    namespace: Namespace, run: Sequence[MeasuredChunk], zones: ZoneMap, threshold: int, rule: Rule
) -> tuple[Merge | None, Measure | None]:
    """Return the steps for a run of chunks that can be merged, in this order.

    ``rule`` is the phase; chunks are measured in `Rule.MERGE_AND_MEASURE` only.
    """
    merge = merge_of(namespace, run, run[0].shard, zones, threshold, rule) if len(run) > 1 else None
    if rule is not Rule.MERGE_AND_MEASURE or merged_size(run, threshold) is not None:
        return merge, None
    whole = MeasuredChunk(run[0].range if merge is None else merge.chunk.range, run[0].shard)
    return merge, measurement_of(namespace, whole, zones, threshold)


def move_of(namespace: Namespace, union: Union, zones: ZoneMap, threshold: int) -> Move:
    """Build the move of a small chunk to the shard of its neighbours."""
    others = [each for each in union.parts if each is not union.chunk]
    numbers: Mapping[str, int] = {
        "bytes": union.chunk.size or 0,
        "smallBelowBytes": threshold,
        "neighbours": len(others),
        **_if_small("neighbourBytes", others, threshold),
    }
    zone = zones.zone_of(union.chunk.range.min_key)
    candidate = _candidate(union.chunk)
    return Move(namespace, candidate, union.recipient, Rule.MOVE_AND_MERGE, is_whole=True, zone=zone, numbers=numbers)


def stays(namespace: Namespace, chunk: MeasuredChunk, zones: ZoneMap, rule: Rule, reason: str) -> Skipped:
    """Record a chunk that a phase does not change, and the reason."""
    return Skipped(namespace, reason, rule, chunk.shard, zones.zone_of(chunk.range.min_key), chunk.range)


def why_alone(chunk: MeasuredChunk, neighbours: Sequence[MeasuredChunk], zones: ZoneMap) -> str:
    """Explain why no neighbour can take a small chunk."""
    if not neighbours:
        return "it has no neighbour"
    if zones.bounds_inside(chunk.range):
        return "a bound of a zone lies inside it"
    zone = zones.zone_of(chunk.range.min_key)
    if not any(
        zones.zone_of(each.range.min_key) == zone and not zones.bounds_inside(each.range) for each in neighbours
    ):
        return "it has no neighbour in its zone"
    return "no shard of its neighbours may receive it: it is draining, or not in the zone"


def _candidate(chunk: MeasuredChunk) -> Candidate:
    return Candidate(chunk.range, chunk.shard)


def _if_small(name: str, chunks: Sequence[MeasuredChunk], threshold: int) -> dict[str, int]:
    """Return the size of several chunks together, if it is known; chunks that are not small have no exact size."""
    size = merged_size(chunks, threshold)
    return {} if size is None or size == LARGE_BYTES else {name: size}
