"""Outcome of a simulation, compared with the work of an ideal balancer."""

from collections import Counter
from dataclasses import dataclass
from math import ceil
from typing import Final

from shardwright.sharding.balancing.cluster_state import Policy, Rule, ShardState
from shardwright.sharding.balancing.policy import THRESHOLD_CHUNKS, ideal_count
from tests.sharding.balancing.simulation import SimulatedChunk, World

_ON_ITS_WAY: Final = "on its way"
"""Chunks that have to leave their shards may go where they are needed."""


@dataclass(frozen=True, slots=True)
class Needs:
    """The moves that put everything into place, and make each zone exactly even.

    Attributes:
        load: bytes, or, by count, chunks.
        moves: the minimum number of moves.
    """

    load: int
    moves: int


def owners_of(world: World, zone: str) -> list[ShardState]:
    """The shards that chunks of a zone may be moved to."""
    return [shard for shard in world.shards if shard.may_receive(zone)]


def needs_of(world: World) -> Needs:
    """Compute the work of an ideal balancer; bounds of zones do not lie inside chunks."""
    misplaced, moves, excess = 0, 0, 0.0
    loads: dict[str, Counter[str]] = {}
    for chunk in world.chunks:
        zone, load = world.zone_of(chunk.low), load_of(world, chunk)
        owners = [shard.id for shard in owners_of(world, zone)]
        at = loads.setdefault(zone, Counter(dict.fromkeys(owners, 0)))
        if chunk.shard in owners or not owners or chunk.is_jumbo:
            at[chunk.shard] += load
        else:
            misplaced += load
            moves += 1
            at[_ON_ITS_WAY] += load
    for at in loads.values():
        arriving = at.pop(_ON_ITS_WAY, 0)
        mean = (at.total() + arriving) / len(at)
        excess += sum(max(0, load - mean) for load in at.values())
    step = world.chunk_bytes_max if world.policy is Policy.DATA_SIZE else 1
    return Needs(misplaced + ceil(excess), moves + ceil(excess / step))


def moved_load(world: World) -> int:
    """Return the moved load; by size, repeated moves count once."""
    if world.policy is Policy.CHUNK_COUNT:
        return sum(map(len, world.rounds))
    return sum(world.document_bytes[key] for key in world.moved)


def load_of(world: World, chunk: SimulatedChunk) -> int:
    """Return the share of a chunk in the load of its shard."""
    return 1 if world.policy is Policy.CHUNK_COUNT else sum(world.document_bytes[chunk.low : chunk.high])


def check_rounds(world: World) -> None:
    """Each shard takes part in at most one move of a round, and all moves go where they are permitted.

    Raises:
        AssertionError: not so.
    """
    shards = {shard.id: shard for shard in world.shards}
    for moves in world.rounds:
        involved = [shard for move in moves for shard in (move.donor, move.recipient)]
        assert len(involved) == len(set(involved))
        assert all(shards[move.recipient].may_receive(move.zone) for move in moves)


def check_placement(world: World) -> None:
    """All chunks are where they may be, as far as there is any such shard and they are not jumbo.

    Raises:
        AssertionError: one is not.
    """
    shards = {shard.id: shard for shard in world.shards}
    for chunk in world.chunks:
        zones = {world.zone_of(key) for key in range(chunk.low, chunk.high)}
        assert len(zones) == 1
        (zone,) = zones
        if owners_of(world, zone) and not chunk.is_jumbo:
            assert shards[chunk.shard].may_receive(zone)


def check_even(world: World) -> None:
    """In each zone, no shard that could give something has so much more than another one that it should.

    Raises:
        AssertionError: one has.
    """
    for zone in {world.zone_of(chunk.low) for chunk in world.chunks}:
        owners = {shard.id for shard in owners_of(world, zone)}
        chunks = [chunk for chunk in world.chunks if world.zone_of(chunk.low) == zone]
        donors = {chunk.shard for chunk in chunks if not chunk.is_jumbo} & owners
        if not donors:
            continue
        if world.policy is Policy.DATA_SIZE:
            sizes = world.sizes
            most, least = (max(sizes.get(shard, 0) for shard in donors), min(sizes.get(shard, 0) for shard in owners))
            assert most - least < THRESHOLD_CHUNKS * world.chunk_bytes_max
        else:
            counts = Counter(chunk.shard for chunk in chunks)
            ideal = ideal_count(len(chunks), len(owners))
            assert max(counts[shard] for shard in donors) <= ideal or min(counts[shard] for shard in owners) >= ideal


def check_no_needless_moves(world: World) -> None:
    """Nothing is moved twice, except from a shard that has got a large chunk because it had to leave another one.

    Such chunks are moved whole, and when data is evened out, parts of them. By count, one is moved twice if the shard
    with the fewest chunks took part in another move when it had to leave.

    Raises:
        AssertionError: something is.
    """
    for rules in world.moved.values():
        if len(rules) > 1:
            assert len(rules) == 2, rules
            assert rules[0] is not Rule.IMBALANCE
            assert rules[1] is Rule.IMBALANCE
