"""Moves that are necessary however even the data is: from draining shards, and from shards outside of a zone."""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from shardwright.sharding.balancing.chunk_queries import Asking, FirstChunk, ask_first_chunk
from shardwright.sharding.balancing.cluster_state import ClusterState, CollectionState, ForceJumbo, ShardState
from shardwright.sharding.balancing.decisions import Decisions, Move, Rule, Skipped
from shardwright.sharding.balancing.evening_out import ShardChoice
from shardwright.sharding.balancing.zones import NO_ZONE

CountsByZone: TypeAlias = Mapping[str, Mapping[str, int]]
"""Numbers of chunks by zone, `NO_ZONE` included, and shard."""


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
