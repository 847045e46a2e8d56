"""A shard's state of a namespace, and the operations in progress on it."""

from uuid import uuid4

import bson
import pytest
import trio
from bson import MaxKey, MinKey, ObjectId
from bson.timestamp import Timestamp
from trio.testing import wait_all_tasks_blocked

from shardwright.shardd.metadata.critical_sections import SectionDriver, writers_of
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.sharding.chunks import ChunkPlacement
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.routing_table import RoutingTable, ShardedCollection
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.versions import IGNORED, UNSHARDED, ChunkVersion, StaleError

EPOCH, TIMESTAMP = ObjectId(), Timestamp(100, 1)


def version(major: int, minor: int, *, timestamp: Timestamp = TIMESTAMP, epoch: ObjectId = EPOCH) -> ChunkVersion:
    return ChunkVersion(major, minor, epoch, timestamp)


def state_with(*chunks: tuple[str, int, int]) -> NamespaceState:
    """The state on shard ``me`` of a collection whose chunks, split at 0, 10, 20, …, have these shards and versions."""
    bounds = [MinKey(), *(10 * number for number in range(len(chunks) - 1)), MaxKey()]
    collection = ShardedCollection(
        Namespace("d", "c"), uuid4(), EPOCH, TIMESTAMP, ShardKeyPattern.from_mapping({"a": 1})
    )
    placements = [
        ChunkPlacement(bson.encode({"a": low}), bson.encode({"a": high}), shard, major << 32 | minor, ())
        for (shard, major, minor), low, high in zip(chunks, bounds, bounds[1:], strict=False)
    ]
    state = NamespaceState("d.c", "me")
    state.learn(RoutingTable.build(collection, placements))
    return state


def verdict(state: NamespaceState, received: ChunkVersion) -> StaleError | None:
    """The error for a version; None if it is accepted, and then its bytes are remembered."""
    try:
        state.check_version(received.raw, received)
    except StaleError as error:
        assert received.raw not in state.accepted
        return error
    assert received.raw in state.accepted
    return None


@pytest.mark.parametrize(
    ("received", "message"),
    [
        (version(3, 7), None),
        (version(3, 2), None),
        (version(3, 7, epoch=ObjectId()), None),
        (IGNORED, None),
        (version(4, 0), "version mismatch detected for d.c"),
        (version(2, 7), "version mismatch detected for d.c"),
        (version(0, 0), "this shard contains chunks for d.c, but the client expects unsharded collection"),
        (version(3, 7, timestamp=Timestamp(101, 1)), "timestamp mismatch detected for d.c"),
        (UNSHARDED, "timestamp mismatch detected for d.c"),
    ],
)
def test_a_version_matches_by_timestamp_and_major(received: ChunkVersion, message: str | None) -> None:
    error = verdict(state_with(("me", 3, 7), ("other", 2, 0)), received)
    assert (error and error.message) == message


def test_a_shard_without_chunks_wants_zero() -> None:
    state = state_with(("other", 3, 7))
    assert verdict(state, version(0, 0)) is None
    error = verdict(state, version(3, 7))
    assert error is not None
    assert error.message == "this shard no longer contains chunks for d.c, the collection may have been dropped"


def test_an_unsharded_collection_wants_unsharded() -> None:
    state = NamespaceState("d.c", "me")
    state.learn(None)
    assert verdict(state, UNSHARDED) is None
    assert verdict(state, version(1, 0)) is not None


def test_an_unknown_namespace_is_refused_without_a_wanted_version() -> None:
    error = verdict(NamespaceState("d.c", "me"), UNSHARDED)
    assert error is not None
    assert error.may_shard_be_stale
    assert error.extra == {"ns": "d.c", "vReceived": UNSHARDED.to_document(), "shardId": "me"}


def test_error_fields() -> None:
    error = verdict(state_with(("me", 3, 7)), version(4, 0))
    assert error is not None
    assert error.code == 13388
    assert error.extra == {
        "ns": "d.c",
        "vReceived": version(4, 0).to_document(),
        "vWanted": version(3, 7).to_document(),
        "shardId": "me",
    }


@pytest.mark.parametrize(("received", "may_be_stale"), [(version(4, 0), True), (version(2, 0), False)])
def test_only_a_newer_version_makes_the_shard_refresh(received: ChunkVersion, may_be_stale: bool) -> None:
    error = verdict(state_with(("me", 3, 7)), received)
    assert error is not None
    assert error.may_shard_be_stale is may_be_stale


def test_forgetting_begins_a_new_generation_and_accepts_nothing() -> None:
    state = state_with(("me", 3, 7))
    table, before = state.table, state.generation
    state.forget()
    assert state.generation == before + 1
    assert not state.accepted
    assert state.last_table is table


async def test_a_critical_section_waits_for_the_writes_before_it_and_not_for_reads() -> None:
    state = state_with(("me", 3, 7))
    state.enter(is_write=True)
    state.enter(is_write=False)
    entered = trio.Event()
    driver = SectionDriver(state, {"command": "test"}, drains=[writers_of(state)])

    async def hold() -> None:
        await driver.block_writes()
        entered.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold)
        await wait_all_tasks_blocked()
        assert not entered.is_set()
        section = state.critical_section
        assert section is not None
        assert section.blocks(is_write=True)
        assert not section.blocks(is_write=False)
        state.exit(state.operations, is_write=True)
        await entered.wait()
    driver.block_reads()
    assert section.blocks(is_write=False)
    driver.leave()
    assert state.critical_section is None
    await section.wait_released()


async def test_critical_sections_for_different_reasons_come_one_after_the_other() -> None:
    state = state_with(("me", 3, 7))
    first = await state.enter_section({"number": 1})
    assert await state.enter_section({"number": 1}) is first
    sections = []

    async def second() -> None:
        sections.append(await state.enter_section({"number": 2}))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(second)
        await wait_all_tasks_blocked()
        assert not sections
        state.release()
    assert sections == [state.critical_section]


def test_only_what_can_be_recreated_is_idle() -> None:
    state = NamespaceState("d.c", "me")
    assert state.is_idle
    state.is_resharding = True  # nothing else tells that its indexes must not change
    assert not state.is_idle


async def test_writes_under_way_are_waited_for_and_later_ones_are_not() -> None:
    state = NamespaceState("d.c", "me")
    state.enter(is_write=False)
    state.enter(is_write=True)
    earlier = state.operations
    async with trio.open_nursery() as nursery:
        nursery.start_soon(state.wait_present_writes)
        await wait_all_tasks_blocked()
        state.enter(is_write=True)
        assert len(nursery.child_tasks) == 1
        state.exit(earlier, is_write=True)
        await wait_all_tasks_blocked()
        assert not nursery.child_tasks
    assert state.writers == 1
