"""Random writes compared with a model, while chunks move back and forth and others are split and merged."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count, pairwise
from typing import Final

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from shardwright.wire.error_codes import ErrorCode
from tests.fail_points import fail_point
from tests.integration.sharded import LOWER, UPPER
from tests.migration.fault_cluster import FaultCluster
from tests.migration.moving import moving
from tests.migration.property_world import KEYS, KINDS, Document, Kind, PropertyWorld
from tests.sampling import many

_numbers = count(1)

EXAMPLES: Final = many(20, 6)
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
"""Writes that go to several shards without versions. As in MongoDB, one that runs while a move commits may find a
document on both shards or on neither (which ``pauseMigrationsDuringMultiUpdates`` of later versions prevents)."""

HOLDS: Final = (
    *(("shard0", f"moveChunkHangAtStep{step}") for step in (2, 3, 4)),
    *(("shard1", f"migrateThreadHangAtStep{step}") for step in (2, 3, 4, 5)),
)
"""Places at which a move may be held while steps are run: everywhere before the critical section.

The shards are donor and recipient of a move up; for a move down they are swapped.
"""

moves = st.tuples(
    st.integers(0, 100),
    st.none() | st.sampled_from(HOLDS),
    st.lists(STEPS, max_size=8),
    st.lists(STEPS, max_size=4),
    st.lists(STEPS, max_size=4),
)
"""The chunk to move, the place to hold it, and the steps while it is held, while it continues, and after it."""

Move = tuple[int, tuple[str, str] | None, list[Step], list[Step], list[Step]]

Shape = tuple[bool, int]
"""Whether a chunk is split or two are merged, and a key in that chunk."""

BESIDE_OWNER_CHANGES: Final = ("has same _id as cloned remote document", "because of open transactions")
"""Errors of moves, as in MongoDB, while documents of the range move to other shards because their keys change."""


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_writes_during_moves(cluster: FaultCluster, kind: Kind) -> None:
    # A failure may leave the cluster in a state in which other examples fail too, so shrinking would be pointless.
    @settings(
        max_examples=EXAMPLES,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
    )
    @given(
        before=st.lists(STEPS, min_size=5, max_size=25),
        moves=st.lists(moves, min_size=1, max_size=4),
        shapes=st.lists(st.tuples(st.booleans(), keys), max_size=2),
    )
    def run(before: list[Step], moves: list[Move], shapes: list[Shape]) -> None:
        database = f"property_{next(_numbers)}"
        world = PropertyWorld(cluster, kind, f"{database}.things")
        do(world, before)
        for move in moves:
            move_during(world, move, shapes)
            with reshaping(world, shapes):
                do(world, move[-1])
        world.check()
        cluster.router().drop_database(database)

    run()


def do(world: PropertyWorld, steps: list[Step]) -> None:
    """Run steps on the collection and on the model."""
    for name, arguments in steps:
        if not (world.is_changing and name in MULTI_WRITES):
            getattr(world, name)(*arguments)


def move_during(world: PropertyWorld, move: Move, shapes: list[Shape]) -> None:
    """Move a chunk, and during the move split and merge others and run steps."""
    index, hold, held, after, _ = move
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
        # Until a move has reached the place where it is held, splitting or merging its chunk could make it fail.
        during.enter_context(reshaping(world, shapes, without=chunk if point is None else None))
        world.is_changing = point is None
        do(world, held)
        if point is not None:
            point.turn_off()
        world.is_changing = True
        do(world, after)
        reply = running.wait()
        world.is_changing = False
        assert reply is not None
        assert reply["ok"] == 1 or any(text in reply["errmsg"] for text in BESIDE_OWNER_CHANGES), reply


@contextmanager
def reshaping(world: PropertyWorld, shapes: list[Shape], *, without: Document | None = None) -> Iterator[None]:
    """Split and merge concurrently while the block runs. On the donor of a move this waits for the move.

    Args:
        world: the collection.
        shapes: the splits and merges to run.
        without: a chunk to leave alone.

    Raises:
        AssertionError: one failed for a reason other than that the chunks have changed.
    """
    address = world.cluster.router_addresses[0]
    commands = [command for shape in shapes if (command := shape_command(world, shape, without)) is not None]
    with ExitStack() as running:
        changes = [running.enter_context(moving(address, command)) for command in commands]
        yield
        for command, change in zip(commands, changes, strict=True):
            reply = change.wait()
            assert reply is not None
            assert reply["ok"] == 1 or is_out_of_date(reply), (command, reply)


def is_out_of_date(reply: Document) -> bool:
    """Whether a change was refused because the chunks have changed since it was requested."""
    return reply.get("code") in (ErrorCode.BadValue, ErrorCode.IllegalOperation) or "boundary key" in reply["errmsg"]


def shape_command(world: PropertyWorld, shape: Shape, without: Document | None) -> Document | None:
    """The command that splits a chunk at a key, or merges the first two neighbours on one shard if there are any."""
    is_split, key = shape
    found = world.chunks
    if is_split:
        middle = world.kind.bound(key)
        chunk = [each for each in found if world.is_at_least(middle, each["min"])][-1]
        return None if chunk == without else {"split": world.namespace, "middle": middle}
    for before, after in pairwise(found):
        if before["shard"] == after["shard"] and without not in (before, after):
            return {"mergeChunks": world.namespace, "bounds": [before["min"], after["max"]]}
    return None
