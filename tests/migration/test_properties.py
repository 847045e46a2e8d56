"""Random writes while chunks move back and forth, compared with a model."""

from contextlib import ExitStack, suppress
from itertools import count, pairwise
from typing import Final

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pymongo.errors import OperationFailure

from tests.fail_points import fail_point
from tests.integration.sharded import LOWER, UPPER
from tests.migration.fault_cluster import FaultCluster
from tests.migration.moving import moving
from tests.migration.property_world import KEYS, KINDS, Kind, PropertyWorld

_numbers = count(1)

EXAMPLES: Final = 20
"""Per kind of collection."""

Step = tuple[str, tuple[int, ...]]

keys = st.integers(0, KEYS - 1)
choices = st.integers(0, 1000)
ranges = st.tuples(keys, st.integers(0, KEYS)).map(lambda bounds: (min(bounds), max(bounds)))


def one_of_kind(name: str, *arguments: st.SearchStrategy[int]) -> st.SearchStrategy[Step]:
    """A step of one kind with arguments."""
    return st.tuples(st.just(name), st.tuples(*arguments))


STEPS: Final[st.SearchStrategy[Step]] = st.one_of(
    one_of_kind("insert", keys, st.integers(0, 2), st.integers(0, 1)),
    one_of_kind("insert", keys, st.integers(0, 2), st.integers(0, 1)),
    one_of_kind("insert_again", choices),
    one_of_kind("update_one", choices),
    one_of_kind("replace_one", choices),
    one_of_kind("modify_one", choices),
    one_of_kind("delete_one", choices),
    one_of_kind("change_key", choices, keys),
    one_of_kind("update_everything"),
    *(st.tuples(st.just(name), ranges) for name in ("update_many", "delete_many", "read")),
)

MULTI_WRITES: Final = ("update_many", "update_everything", "delete_many")
"""Writes that go to several shards, whatever versions these have. As in MongoDB, one that runs while a move commits may
find a document on both shards or on neither (which the later ``pauseMigrationsDuringMultiUpdates`` prevents)."""

HOLDS: Final = (
    *(("shard0", f"moveChunkHangAtStep{step}") for step in (2, 3, 4)),
    *(("shard1", f"migrateThreadHangAtStep{step}") for step in (2, 3, 4, 5)),
)
"""Where a move may be held while steps are done: everywhere before the critical section. The shards are the donor's and
the recipient's of a move up; for a move down they change places."""

moves = st.tuples(
    st.integers(0, 100),
    st.none() | st.sampled_from(HOLDS),
    st.lists(STEPS, max_size=8),
    st.lists(STEPS, max_size=4),
)
"""Which chunk moves, where it is held, what is done meanwhile, and what is done while it goes on."""

Move = tuple[int, tuple[str, str] | None, list[Step], list[Step]]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_writes_during_moves(cluster: FaultCluster, kind: Kind) -> None:
    # A failure may leave the cluster in a state that makes other examples fail, so nothing is gained by shrinking it.
    @settings(
        max_examples=EXAMPLES,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
    )
    @given(
        before=st.lists(STEPS, min_size=5, max_size=25),
        moves=st.lists(moves, min_size=1, max_size=4),
        reshape=st.lists(st.tuples(st.booleans(), keys), max_size=2),
    )
    def run(before: list[Step], moves: list[Move], reshape: list[tuple[bool, int]]) -> None:
        database = f"property_{next(_numbers)}"
        world = PropertyWorld(cluster, kind, f"{database}.things")
        do(world, before)
        for move in moves:
            move_during(world, move)
            for is_split, key in reshape:
                change_shape(world, is_split=is_split, key=key)
        world.check()
        cluster.router().drop_database(database)

    run()


def do(world: PropertyWorld, steps: list[Step]) -> None:
    """Do steps to the collection and to the model."""
    for name, arguments in steps:
        if not (world.is_changing and name in MULTI_WRITES):
            getattr(world, name)(*arguments)


def move_during(world: PropertyWorld, move: Move) -> None:
    """Move a chunk, and do steps meanwhile."""
    index, hold, held, after = move
    found = world.chunks
    chunk = found[index % len(found)]
    to = LOWER if chunk["shard"] == UPPER else UPPER
    command = {"moveChunk": world.namespace, "bounds": [chunk["min"], chunk["max"]], "to": to}
    with ExitStack() as during:
        point = None
        if hold is not None:
            role, name = hold
            shard = role if to == UPPER else {LOWER: UPPER, UPPER: LOWER}[role]
            point = during.enter_context(fail_point(world.cluster.client(f"{shard}.0.shardd"), name))
        running = during.enter_context(moving(world.cluster.router_addresses[1], command))
        if point is not None:
            point.wait_entered()
        world.is_changing = point is None
        do(world, held)
        if point is not None:
            point.turn_off()
        world.is_changing = True
        do(world, after)
        reply = running.wait()
        world.is_changing = False
        assert reply is not None
        assert reply["ok"] == 1, reply


def change_shape(world: PropertyWorld, *, is_split: bool, key: int) -> None:
    """Split a chunk at a key, or merge the first two neighbours on one shard."""
    admin, namespace = world.cluster.router().admin, world.namespace
    found = world.chunks
    if is_split:
        # A chunk without two different keys has no place to be split at.
        with suppress(OperationFailure):
            admin.command("split", namespace, find={field: key for field in world.kind.key})
        return
    for before, after in pairwise(found):
        if before["shard"] == after["shard"]:
            admin.command("mergeChunks", namespace, bounds=[before["min"], after["max"]])
            return
