"""The steps of defragmentation as decisions: each with its phase as the rule, its numbers, and what stays as it is."""

from collections.abc import Mapping, Sequence

from shardwright.sharding.balancing.decisions import Measure, Merge, Move, Rule, Skipped
from shardwright.sharding.balancing.defragmentation import LARGE_BYTES, MeasuredChunk, Union, merged_size
from shardwright.sharding.balancing.questions import Candidate
from shardwright.sharding.balancing.zones import ZoneMap
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.namespace import Namespace

UNKNOWN_SHARD = "there is no such shard"
WAITS_FOR_NEIGHBOUR = "what becomes of it is decided when its neighbour has been merged"


def merge_of(
    namespace: Namespace, parts: Sequence[MeasuredChunk], shard: str, zones: ZoneMap, threshold: int, rule: Rule
) -> Merge:
    """The merge of chunks that follow each other and are, or will be by then, on one shard."""
    low, high = parts[0].range, parts[-1].range
    whole = Candidate(ChunkRange(low.min, high.max, low.min_key, high.max_key), shard)
    numbers = {"chunks": len(parts), **_if_small("bytes", parts, threshold)}
    return Merge(namespace, whole, rule, zones.zone_of(low.min_key), numbers)


def measurement_of(namespace: Namespace, chunk: MeasuredChunk, zones: ZoneMap, threshold: int) -> Measure:
    """The measurement of a chunk that has no recorded size."""
    zone = zones.zone_of(chunk.range.min_key)
    return Measure(namespace, _candidate(chunk), Rule.MERGE_AND_MEASURE, zone, {"smallBelowBytes": threshold})


def steps_of_run(
    namespace: Namespace, run: Sequence[MeasuredChunk], zones: ZoneMap, threshold: int, rule: Rule
) -> tuple[Merge | None, Measure | None]:
    """What is to be done with a run of chunks that can be merged, in this order.

    Args:
        namespace: the collection.
        run: the chunks.
        zones: the zones of the collection.
        threshold: from which size on a chunk is not small.
        rule: the phase; chunks are measured in `Rule.MERGE_AND_MEASURE` only.
    """
    merge = merge_of(namespace, run, run[0].shard, zones, threshold, rule) if len(run) > 1 else None
    if rule is not Rule.MERGE_AND_MEASURE or merged_size(run, threshold) is not None:
        return merge, None
    whole = MeasuredChunk(run[0].range if merge is None else merge.chunk.range, run[0].shard)
    return merge, measurement_of(namespace, whole, zones, threshold)


def move_of(namespace: Namespace, union: Union, zones: ZoneMap, threshold: int) -> Move:
    """The move of a small chunk to the shard of its neighbours."""
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
    """A chunk that a phase leaves as it is, and why."""
    return Skipped(namespace, reason, rule, chunk.shard, zones.zone_of(chunk.range.min_key), chunk.range)


def why_alone(chunk: MeasuredChunk, neighbours: Sequence[MeasuredChunk], zones: ZoneMap) -> str:
    """Why no neighbour can take a small chunk."""
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
    """The size of several chunks together, if it is known; what is not small has not been measured further."""
    size = merged_size(chunks, threshold)
    return {} if size is None or size == LARGE_BYTES else {name: size}
