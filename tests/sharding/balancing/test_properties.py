"""The policy on random clusters: it ends, in an even and permitted placement, and moves nothing without need."""

from itertools import pairwise
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.sharding.balancing.cluster_state import NO_ZONE, Policy, Rule, ShardState
from shardwright.sharding.balancing.policy import THRESHOLD_CHUNKS, ideal_count
from tests.sampling import many
from tests.sharding.balancing.outcome import check_even, check_no_needless_moves, check_placement, check_rounds
from tests.sharding.balancing.simulation import SimulatedChunk, World

ROUNDS_MAX: Final = 500
CHUNK_BYTES: Final = 10
ZONES: Final = ("y", "z")


@st.composite
def worlds(draw: st.DrawFn, *, zoned: bool, draining: bool, policy: Policy) -> World:
    """Clusters of two to six shards with one collection of any placement."""
    names = [f"s{number}" for number in range(draw(st.integers(2, 6)))]
    shards = [
        ShardState(
            name,
            frozenset(draw(st.sets(st.sampled_from(ZONES)))) if zoned else frozenset(),
            draining and draw(st.booleans()) and name != names[0],
        )
        for name in names
    ]
    keys = draw(st.integers(1, 120))
    cuts = sorted({0, keys, *draw(st.lists(st.integers(0, keys), max_size=30))})
    owners = draw(st.lists(st.sampled_from(names), min_size=len(cuts), max_size=len(cuts)))
    chunks = [SimulatedChunk(low, high, owner) for low, high, owner in zip(cuts, cuts[1:], owners, strict=False)]
    sizes = draw(st.lists(st.integers(0, CHUNK_BYTES), min_size=keys, max_size=keys))
    zones = _zone_ranges(draw, keys) if zoned else []
    return World(shards, chunks, sizes, zones, policy, CHUNK_BYTES)


def _zone_ranges(draw: st.DrawFn, keys: int) -> list[tuple[int, int, str]]:
    cuts = sorted(draw(st.sets(st.integers(0, keys), max_size=6)))
    ranges = [(low, high, draw(st.sampled_from((*ZONES, NO_ZONE)))) for low, high in pairwise(cuts)]
    return [each for each in ranges if each[2] != NO_ZONE]


@settings(max_examples=many(1000, 60), deadline=None)
@given(worlds(zoned=False, draining=False, policy=Policy.DATA_SIZE))
def test_data_becomes_even_and_nothing_moves_twice(world: World) -> None:
    world.run(ROUNDS_MAX)
    check_rounds(world)
    sizes = [world.sizes.get(shard.id, 0) for shard in world.shards]
    assert max(sizes) - min(sizes) < THRESHOLD_CHUNKS * CHUNK_BYTES
    assert max(map(len, world.moved.values()), default=0) <= 1


@settings(max_examples=many(1000, 60), deadline=None)
@given(worlds(zoned=False, draining=True, policy=Policy.DATA_SIZE))
def test_draining_shards_become_empty(world: World) -> None:
    world.run(ROUNDS_MAX)
    check_rounds(world)
    check_placement(world)
    check_even(world)
    assert all(world.sizes.get(shard.id, 0) == 0 for shard in world.shards if shard.is_draining)


@settings(max_examples=many(1000, 60), deadline=None)
@given(worlds(zoned=True, draining=True, policy=Policy.DATA_SIZE))
def test_zones_are_respected_always(world: World) -> None:
    world.run(ROUNDS_MAX)
    check_rounds(world)
    check_placement(world)
    check_even(world)


@settings(max_examples=many(1000, 60), deadline=None)
@given(worlds(zoned=True, draining=True, policy=Policy.CHUNK_COUNT))
def test_counts_with_zones_and_draining_shards(world: World) -> None:
    world.run(ROUNDS_MAX)
    check_rounds(world)
    check_placement(world)
    check_even(world)
    check_no_needless_moves(world)


@settings(max_examples=many(1000, 60), deadline=None)
@given(worlds(zoned=False, draining=False, policy=Policy.CHUNK_COUNT))
def test_counts_become_even_and_nothing_moves_twice(world: World) -> None:
    world.run(ROUNDS_MAX)
    check_rounds(world)
    counts = [world.counts.get(shard.id, 0) for shard in world.shards]
    ideal = ideal_count(sum(counts), len(counts))
    assert max(counts) <= ideal or min(counts) >= ideal
    assert max(map(len, world.moved.values()), default=0) <= 1


@settings(max_examples=many(1000, 60), deadline=None)
@given(worlds(zoned=True, draining=False, policy=Policy.DATA_SIZE))
def test_every_move_has_a_reason(world: World) -> None:
    """The same decisions, checked one by one against what the rules say."""
    shards = {shard.id: shard for shard in world.shards}
    for _ in range(ROUNDS_MAX):
        moves = world.decide().moves
        if not moves:
            return
        for move in moves:
            if move.rule is Rule.IMBALANCE:
                difference = world.sizes.get(move.donor, 0) - world.sizes.get(move.recipient, 0)
                assert difference >= THRESHOLD_CHUNKS * CHUNK_BYTES
            else:
                assert not shards[move.donor].may_own(move.zone)
        for move in moves:
            world.carry_out(move)
    raise AssertionError("the rounds do not end")
