"""The policy on recorded clusters: round after round until there is nothing left to do.

``python -m tests.sharding.balancing.test_recorded_shapes`` shows the numbers of moves next to the ideal ones.
"""

from itertools import product

import pytest

from shardwright.sharding.balancing.cluster_state import Policy
from tests.sharding.balancing.outcome import (
    check_even,
    check_no_needless_moves,
    check_placement,
    check_rounds,
    moved_load,
    needs_of,
)
from tests.sharding.balancing.recorded import SHAPES, recorded_world
from tests.sharding.balancing.simulation import World

ROUNDS_MAX = 500


@pytest.fixture(params=[*product(SHAPES, Policy)], ids=lambda each: f"{each[0]}-{each[1].value}")
def world(request: pytest.FixtureRequest) -> World:
    """Each of the shapes with each policy; chunks have been split at the bounds of zones."""
    found = recorded_world(*request.param)
    found.decide()
    return found


def test_it_converges_in_few_moves_that_are_permitted(world: World) -> None:
    needed = needs_of(world)
    world.run(ROUNDS_MAX)
    check_rounds(world)
    check_placement(world)
    check_even(world)
    assert moved_load(world) <= needed.load, "some of it would not have had to be moved"
    check_no_needless_moves(world)


def show() -> None:
    """Print a line for each shape and policy."""
    print(f"{'shape':28}{'policy':12}chunks shards rounds moves ideal load/ideal twice")
    for name, policy in product(SHAPES, Policy):
        world = recorded_world(name, policy)
        world.decide()
        needed, chunks = needs_of(world), len(world.chunks)
        rounds = world.run(ROUNDS_MAX)
        moves, twice = sum(map(len, world.rounds)), sum(len(rules) > 1 for rules in world.moved.values())
        load = moved_load(world) / needed.load if needed.load else 0.0
        numbers = f"{chunks:6}{len(world.shards):7}{rounds:7}{moves:6}{needed.moves:6}{load:11.2f}{twice:6}"
        print(f"{name:28}{policy.value:12}{numbers}")


if __name__ == "__main__":
    show()
