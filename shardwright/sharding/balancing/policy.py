"""The balancer's rules in their order: split at the bounds of zones, drain, correct zones, even out."""

from collections import Counter
from collections.abc import Iterable, Mapping

from shardwright.sharding.balancing.chunk_queries import Asking, ChunkCounts, ChunksAcross, ask_counts
from shardwright.sharding.balancing.cluster_state import ClusterState, CollectionState, Policy
from shardwright.sharding.balancing.decisions import Decisions, Rule, Skipped, Split
from shardwright.sharding.balancing.evening_out import ShardChoice, even_out_counts, even_out_data
from shardwright.sharding.balancing.mandatory_moves import CountsByZone, empty_draining_shards, move_into_zones
from shardwright.sharding.balancing.zones import NO_ZONE


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
