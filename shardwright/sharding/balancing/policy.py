"""The balancer's rules in their order: split at the bounds of zones, drain, correct zones, even out.

Moves from draining shards, and from shards outside of a zone, are necessary however even the data is. The others even
out the data of a collection, or the number of its chunks, and choose its shards.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from shardwright.sharding.balancing.cluster_state import (
    NO_ZONE,
    Asking,
    Candidate,
    ChunkCounts,
    ChunksAcross,
    ClusterState,
    CollectionState,
    Decisions,
    FirstChunk,
    ForceJumbo,
    Move,
    Policy,
    Rule,
    ShardState,
    Skipped,
    Split,
    ask_counts,
    ask_first_chunk,
)

CountsByZone: TypeAlias = Mapping[str, Mapping[str, int]]
"""Numbers of chunks by zone, `NO_ZONE` included, and shard."""


class ShardChoice:
    """The shards of a round. A shard takes part in at most one move of each round."""

    def __init__(self, cluster: ClusterState) -> None:
        self.shards = cluster.shards
        self._busy: set[str] = set()

    def take(self, *shards: str) -> None:
        """Mark shards as taking part in a move."""
        self._busy.update(shards)

    def free(self) -> Iterator[ShardState]:
        """Yield the shards that may still get a move, skipping those that get one during the iteration."""
        return (shard for shard in self.shards if shard.is_available and shard.id not in self._busy)

    @property
    def is_over(self) -> bool:
        """Whether no further move is possible: it takes two shards."""
        return sum(1 for _ in self.free()) < 2

    def receivers(self, zone: str) -> list[ShardState]:
        """Return the free shards that may receive chunks of a zone."""
        return [shard for shard in self.free() if shard.may_receive(zone)]

    def least_loaded(self, zone: str, loads: Mapping[str, int]) -> ShardState | None:
        """Return the free shard with the smallest load that may receive chunks of a zone; None if there is none.

        Of several, it is the first by name, as in MongoDB.
        """
        return min(self.receivers(zone), key=lambda shard: loads.get(shard.id, 0), default=None)

    def most_loaded_first(self, loads: Mapping[str, int]) -> list[ShardState]:
        """Return the free shards by their load, in descending order."""
        return sorted(self.free(), key=lambda shard: -loads.get(shard.id, 0))


THRESHOLD_CHUNKS: Final = 3
"""Minimum difference in size between two shards, in multiples of the chunk size, for a move of data."""


def even_out_data(collection: CollectionState, choice: ShardChoice, decisions: Decisions) -> Asking[None]:
    """Move data from the shard with most to the shard with least, for each zone and for no zone.

    The load of a shard is the size of the whole collection on it, also within a zone, as in MongoDB. Two rules are
    ours. If the shard with most data has no chunks in a zone, the next one is tried; MongoDB stops there. And except
    between those two extremes, a move must not take a shard past the mean. MongoDB fills shards of medium load with
    data that it has to move again later.
    """
    for zone in (*collection.zones.zones, NO_ZONE):
        while not choice.is_over and (yield from _move_data(collection, zone, choice, decisions)):
            pass


def _move_data(collection: CollectionState, zone: str, choice: ShardChoice, decisions: Decisions) -> Asking[bool]:
    step, threshold = collection.chunk_bytes_max, THRESHOLD_CHUNKS * collection.chunk_bytes_max
    within, recipient = collection.zones.ranges(frozenset({zone})), choice.least_loaded(zone, collection.sizes)
    if recipient is None or within == ():
        return False
    to_size = collection.size_on(recipient.id)
    limits = _Extremes.of(collection, [each for each in choice.shards if each.may_receive(zone)])
    for donor in choice.most_loaded_first(collection.sizes):
        from_size = collection.size_on(donor.id)
        if from_size - to_size < threshold:
            return False
        if not limits.allow(from_size, to_size, step):
            reason = f"the move to {recipient.id} would take a shard past the mean of {limits.mean} bytes"
            decisions.skipped.append(Skipped(collection.namespace, reason, Rule.IMBALANCE, donor.id, zone))
            return False
        chunk = yield from ask_first_chunk(FirstChunk(collection.namespace, donor.id, within))
        if chunk is not None:
            numbers = {"donorBytes": from_size, "recipientBytes": to_size, "thresholdBytes": threshold}
            decisions.moves.append(
                Move(
                    collection.namespace,
                    chunk,
                    recipient.id,
                    Rule.IMBALANCE,
                    is_whole=False,
                    zone=zone,
                    numbers=numbers,
                )
            )
            choice.take(donor.id, recipient.id)
            return True
        limits = limits.without(donor.id)
        reason = "the shard has more data than others, but no chunk of this zone that can be moved"
        decisions.skipped.append(Skipped(collection.namespace, reason, Rule.IMBALANCE, donor.id, zone))
    return False


@dataclass(frozen=True, slots=True)
class _Extremes:
    """Sizes of a collection on the shards that may have a zone; ``givers`` may have chunks of it to give."""

    least: int
    mean: int
    givers: Mapping[str, int]

    @classmethod
    def of(cls, collection: CollectionState, shards: Sequence[ShardState]) -> "_Extremes":
        sizes = {shard.id: collection.size_on(shard.id) for shard in shards}
        return cls(min(sizes.values()), sum(sizes.values()) // len(sizes), sizes)

    def without(self, shard: str) -> "_Extremes":
        """Return the same without a shard that has nothing to give."""
        return replace(self, givers={name: size for name, size in self.givers.items() if name != shard})

    def allow(self, from_size: int, to_size: int, step: int) -> bool:
        """Whether the sizes are the extremes, or both stay on their side of the mean."""
        is_extreme = from_size >= max(self.givers.values(), default=0) and to_size <= self.least
        return is_extreme or (from_size - step >= self.mean and to_size + step <= self.mean)


def even_out_counts(
    collection: CollectionState,
    cluster: ClusterState,
    counts_by_zone: Mapping[str, Mapping[str, int]],
    choice: ShardChoice,
    decisions: Decisions,
) -> Asking[None]:
    """Move chunks from shards that have more than the ideal number to those that have fewer, as MongoDB before 6.0."""
    for zone, counts in counts_by_zone.items():
        owners = sum(1 for shard in cluster.shards if not shard.is_draining and shard.may_own(zone))
        if not owners:
            continue
        within = collection.zones.ranges(frozenset({zone}))
        ideal = ideal_count(sum(counts.values()), owners)
        for donor, recipient in _uneven_pairs(zone, counts, ideal, choice):
            chunk = yield from ask_first_chunk(FirstChunk(collection.namespace, donor.id, within))
            if chunk is None:
                reason = "the shard has more chunks than others, but none that can be moved"
                decisions.skipped.append(Skipped(collection.namespace, reason, Rule.IMBALANCE, donor.id, zone))
                break
            numbers = {
                "donorChunks": counts.get(donor.id, 0),
                "recipientChunks": counts.get(recipient.id, 0),
                "idealChunks": ideal,
            }
            decisions.moves.append(
                Move(
                    collection.namespace,
                    chunk,
                    recipient.id,
                    Rule.IMBALANCE,
                    is_whole=True,
                    force_jumbo=cluster.force_jumbo,
                    zone=zone,
                    numbers=numbers,
                )
            )
            choice.take(donor.id, recipient.id)


def ideal_count(chunks: int, shards: int) -> int:
    """Return the ideal number of chunks on each shard, rounded to the nearest integer, halves up."""
    return (2 * chunks + shards) // (2 * shards)


def _uneven_pairs(
    zone: str, counts: Mapping[str, int], ideal: int, choice: ShardChoice
) -> Iterator[tuple[ShardState, ShardState]]:
    while not choice.is_over:
        recipient = choice.least_loaded(zone, counts)
        donor = choice.most_loaded_first(counts)[0]
        if recipient is None or not counts.get(donor.id, 0) > ideal > counts.get(recipient.id, 0):
            return
        yield donor, recipient


def place_offered(cluster: ClusterState, collection: CollectionState, chunk: Candidate) -> Asking[Move | None]:
    """Choose the move of a chunk, without the bound of a zone inside, to the least loaded shard of its zone.

    None if that is the owner, or there is none.
    """
    if collection.why_skipped:
        return None
    if cluster.policy is Policy.DATA_SIZE:
        loads = collection.sizes
    else:
        loads = Counter((yield from ask_counts(ChunkCounts(collection.namespace, None))))
    zone = collection.zones.zone_of(chunk.range.min_key)
    recipient = ShardChoice(cluster).least_loaded(zone, loads)
    if recipient is None or recipient.id == chunk.shard:
        return None
    numbers = {"donorLoad": loads.get(chunk.shard, 0), "recipientLoad": loads.get(recipient.id, 0)}
    return Move(collection.namespace, chunk, recipient.id, Rule.HOT_END, is_whole=True, zone=zone, numbers=numbers)


def empty_draining_shards(
    collection: CollectionState,
    loads: Mapping[str, int],
    choice: ShardChoice,
    decisions: Decisions,
    *,
    counts: CountsByZone | None = None,
) -> Asking[None]:
    """Move from each draining shard the first chunk for whose zone there is a recipient, however large it is.

    Known ``counts`` avoid queries for chunks that a shard does not have.
    """
    for shard in choice.free():
        if not shard.is_draining:
            continue
        zones = _present(frozenset(collection.zones.zones) | {NO_ZONE}, shard, counts)
        force = ForceJumbo.BALANCER
        yield from _move_away(collection, shard, zones, Rule.DRAINING, force, loads, counts, choice, decisions)


def move_into_zones(
    collection: CollectionState,
    cluster: ClusterState,
    loads: Mapping[str, int],
    choice: ShardChoice,
    decisions: Decisions,
    *,
    counts: CountsByZone | None = None,
) -> Asking[None]:
    """Move from each shard the first chunk of a zone that it does not belong to (see `empty_draining_shards`)."""
    if not collection.zones.has_zones:
        return
    force = cluster.force_jumbo
    for shard in choice.free():
        if shard.is_draining:
            continue
        strange = _present((zone for zone in collection.zones.zones if not shard.may_own(zone)), shard, counts)
        yield from _move_away(collection, shard, strange, Rule.ZONE_VIOLATION, force, loads, counts, choice, decisions)


def _present(zones: Iterable[str], shard: ShardState, counts: CountsByZone | None) -> frozenset[str]:
    """Return the zones among ``zones`` that may have chunks on a shard."""
    return frozenset(zone for zone in zones if counts is None or counts.get(zone, {}).get(shard.id))


def _loads_within(zone: str, loads: Mapping[str, int], counts: CountsByZone | None) -> Mapping[str, int]:
    """Return the loads by which the recipient of a chunk of a zone is chosen.

    By count, each zone is evened out by itself, so the number of its chunks comes first. MongoDB uses the number of all
    chunks, and then has to move some of them again.
    """
    if counts is None:
        return loads
    weight, within = sum(loads.values()) + 1, counts.get(zone, {})
    return {shard: within.get(shard, 0) * weight + load for shard, load in loads.items()}


def _move_away(
    collection: CollectionState,
    shard: ShardState,
    zones: frozenset[str],
    rule: Rule,
    force: ForceJumbo,
    loads: Mapping[str, int],
    counts: CountsByZone | None,
    choice: ShardChoice,
    decisions: Decisions,
) -> Asking[None]:
    """Move the first chunk of some zones away from a shard that may no longer have it."""
    receivable = frozenset(zone for zone in zones if choice.least_loaded(zone, loads) is not None)
    within = collection.zones.ranges(receivable) if receivable else ()
    chunk = yield from ask_first_chunk(FirstChunk(collection.namespace, shard.id, within))
    if chunk is not None:
        zone = collection.zones.zone_of(chunk.range.min_key)
        recipient = choice.least_loaded(zone, _loads_within(zone, loads, counts))
        assert recipient is not None
        numbers = {"donorLoad": loads.get(shard.id, 0), "recipientLoad": loads.get(recipient.id, 0)}
        decisions.moves.append(
            Move(
                collection.namespace,
                chunk,
                recipient.id,
                rule,
                is_whole=True,
                force_jumbo=force,
                zone=zone,
                numbers=numbers,
            )
        )
        choice.take(shard.id, recipient.id)
        return
    yield from _explain_what_stays(collection, shard, zones, receivable, rule, decisions)


def _explain_what_stays(
    collection: CollectionState,
    shard: ShardState,
    zones: frozenset[str],
    receivable: frozenset[str],
    rule: Rule,
    decisions: Decisions,
) -> Asking[None]:
    def skip(reason: str, zone: str = "") -> None:
        decisions.skipped.append(Skipped(collection.namespace, reason, rule, shard.id, zone))

    if receivable:
        within = collection.zones.ranges(receivable)
        stuck = yield from ask_first_chunk(FirstChunk(collection.namespace, shard.id, within, is_movable=False))
        if stuck is not None:
            skip("the remaining chunks are jumbo, or their last move has failed and is not due to be repeated yet")
    for zone in sorted(zones - receivable):
        within = collection.zones.ranges(frozenset({zone}))
        if (yield from ask_first_chunk(FirstChunk(collection.namespace, shard.id, within))) is not None:
            skip("no shard that may receive chunks of this zone is free in this round", zone)


def choose_splits(collections: Iterable[CollectionState]) -> Asking[Decisions]:
    """Choose the chunks to split, because the bounds of zones lie in their interior.

    A collection with such a chunk gets no moves until it is split, because the chunk does not belong to a single zone.
    """
    decisions = Decisions()
    for collection in collections:
        if not collection.why_skipped:
            decisions.splits += yield from _splits(collection)
    return decisions


def _splits(collection: CollectionState) -> Asking[list[Split]]:
    if not collection.zones.has_zones:
        return []
    answer = yield ChunksAcross(collection.namespace, collection.zones)
    return [Split(collection.namespace, chunk, collection.zones.bounds_inside(chunk.range)) for chunk in answer.chunks]


def choose_moves(cluster: ClusterState, collections: Iterable[CollectionState]) -> Asking[Decisions]:
    """Choose the moves of one round, in which each shard takes part in at most one.

    The collections get their turns in order. Chunks of collections that may be balanced do not contain bounds of zones
    in their interior.
    """
    decisions, choice = Decisions(), ShardChoice(cluster)
    for shard in cluster.shards:
        if not shard.is_available:
            # Its statistics are missing, so it takes no part in a move.
            choice.take(shard.id)
    for collection in collections:
        if collection.why_skipped:
            decisions.skipped.append(Skipped(collection.namespace, collection.why_skipped))
        elif choice.is_over:
            decisions.skipped.append(
                Skipped(collection.namespace, "no two shards are left that can take part in a move")
            )
        else:
            yield from _choose_for(collection, cluster, choice, decisions)
    return decisions


def _choose_for(
    collection: CollectionState, cluster: ClusterState, choice: ShardChoice, decisions: Decisions
) -> Asking[None]:
    if cluster.policy is Policy.DATA_SIZE:
        yield from empty_draining_shards(collection, collection.sizes, choice, decisions)
        yield from move_into_zones(collection, cluster, collection.sizes, choice, decisions)
        yield from even_out_data(collection, choice, decisions)
        return
    counts = yield from _counts_by_zone(collection)
    loads = Counter[str]()
    for each in counts.values():
        loads.update(each)
    yield from empty_draining_shards(collection, loads, choice, decisions, counts=counts)
    yield from move_into_zones(collection, cluster, loads, choice, decisions, counts=counts)
    yield from even_out_counts(collection, cluster, counts, choice, decisions)


def _counts_by_zone(collection: CollectionState) -> Asking[CountsByZone]:
    """Count the chunks by zone, `NO_ZONE` included, and shard.

    The numbers for `NO_ZONE` are all chunks minus the chunks in zones, which takes fewer look-ups than its many ranges.
    """
    zones, counts = collection.zones, dict[str, Mapping[str, int]]()
    rest = Counter((yield from ask_counts(ChunkCounts(collection.namespace, None))))
    for zone in zones.zones:
        counts[zone] = yield from ask_counts(ChunkCounts(collection.namespace, zones.ranges(frozenset({zone}))))
        rest.subtract(counts[zone])
    if zones.ranges(frozenset({NO_ZONE})) != ():
        # Chunks may have moved between the look-ups.
        counts[NO_ZONE] = {shard: max(number, 0) for shard, number in rest.items()}
    return counts


def first_violation(cluster: ClusterState, collection: CollectionState) -> Asking[Rule | None]:
    """Return the first rule that the placement of a collection violates; None if there is nothing to do.

    As in MongoDB's ``balancerCollectionStatus``, a chunk to be split at a zone's bound violates its zone, whether or
    not the collection may be balanced.
    """
    if (yield from _splits(collection)):
        return Rule.ZONE_VIOLATION
    decisions = Decisions()
    yield from _choose_for(collection, cluster, ShardChoice(cluster), decisions)
    return decisions.moves[0].rule if decisions.moves else None
