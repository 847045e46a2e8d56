"""The ranges with orphans follow from the range deletions and the routing table."""

from typing import Any
from uuid import UUID, uuid4

import pytest
import trio
from bson import MaxKey, MinKey, ObjectId
from bson.timestamp import Timestamp
from trio.testing import wait_all_tasks_blocked

from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.shardd.orphans.range_deletion_tasks import (
    CLEAN_DELAYED,
    KeyRange,
    RangeDeletionTask,
    orphan_ranges,
    range_of,
)
from shardwright.shardd.range_deleter.range_deleter import ready_seconds, remaining_seconds
from shardwright.sharding.chunks import ChunkPlacement
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.routing_table import RoutingTable, ShardedCollection
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.rawbson import encode_document

UUID_NOW = uuid4()
KEY = ShardKeyPattern.from_mapping({"a": 1})


def bound(value: object) -> bytes:
    return encode_document({"a": value})


def table(*owners: str, uuid: UUID = UUID_NOW) -> RoutingTable:
    """A table whose chunks, split at 0, 10, 20, …, belong to these shards."""
    bounds: list[Any] = [MinKey(), *(10 * number for number in range(len(owners) - 1)), MaxKey()]
    collection = ShardedCollection(Namespace("d", "c"), uuid, ObjectId(), Timestamp(1, 1), KEY)
    return RoutingTable.build(
        collection,
        [
            ChunkPlacement(bound(low), bound(high), owner, (1 << 32) + number, ())
            for number, (owner, low, high) in enumerate(zip(owners, bounds, bounds[1:], strict=False))
        ],
    )


def deletion(low: object, high: object, *, uuid: UUID = UUID_NOW, timestamp: int | None = None) -> RangeDeletionTask:
    time = None if timestamp is None else Timestamp(timestamp, 1)
    return RangeDeletionTask(uuid4(), "d.c", uuid, "me", KeyRange(bound(low), bound(high)), False, CLEAN_DELAYED, time)


def found(tasks: list[RangeDeletionTask], routing: RoutingTable) -> list[str]:
    return [str(each) for each in orphan_ranges(tasks, routing, "me")]


@pytest.mark.parametrize(
    ("tasks", "owners", "expected"),
    [
        ([], ("other",), []),
        ([(0, 10)], ("me", "other", "me"), ["[{ a: 0 }, { a: 10 })"]),
        ([(0, 10)], ("me", "me", "other"), []),
        ([(2, 8)], ("other",), ["[{ a: 2 }, { a: 8 })"]),
        ([(0, 30)], ("me", "other", "me", "other", "me"), ["[{ a: 0 }, { a: 10 })", "[{ a: 20 }, { a: 30 })"]),
        ([(5, 25)], ("me", "other", "me", "other", "me"), ["[{ a: 5 }, { a: 10 })", "[{ a: 20 }, { a: 25 })"]),
        ([(10, 20), (0, 10), (5, 15)], ("me", "other", "other", "me"), ["[{ a: 0 }, { a: 20 })"]),
        ([(MinKey(), MaxKey())], ("other", "me", "other"), ["[{ a: MinKey }, { a: 0 })", "[{ a: 10 }, { a: MaxKey })"]),
    ],
)
def test_orphan_ranges_are_the_parts_of_range_deletions_that_others_own(
    tasks: list[tuple[object, object]], owners: tuple[str, ...], expected: list[str]
) -> None:
    assert found([deletion(*each) for each in tasks], table(*owners)) == expected


def test_range_deletions_of_a_former_collection_do_not_count() -> None:
    assert found([deletion(0, 10, uuid=uuid4())], table("other")) == []


def test_a_state_updates_its_orphans_when_anything_changes() -> None:
    state = NamespaceState("d.c", "me")
    state.set_range_deletions([deletion(0, 10)])
    assert state.orphans is None  # nobody is let in yet
    state.learn(table("me", "other", "me"))
    assert state.orphans is not None
    assert [str(each) for each in state.orphans.ranges] == ["[{ a: 0 }, { a: 10 })"]
    state.learn(table("me", "me", "me"))
    assert state.orphans is None
    state.learn(table("me", "other", "me"))
    assert state.orphans is not None
    state.set_range_deletions([])
    assert state.orphans is None


async def test_earlier_operations_are_waited_for_and_later_ones_are_not() -> None:
    state = NamespaceState("d.c", "me")
    first = state.operations
    state.enter(is_write=False)
    ended: list[str] = []

    async def wait(name: str) -> None:
        await state.wait_earlier_operations()
        ended.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, "one")
        await wait_all_tasks_blocked()
        second = state.operations
        state.enter(is_write=False)
        nursery.start_soon(wait, "two")
        await wait_all_tasks_blocked()
        state.enter(is_write=False)  # goes on for ever
        state.exit(first, is_write=False)
        await wait_all_tasks_blocked()
        assert ended == ["one"]
        state.exit(second, is_write=False)
    assert ended == ["one", "two"]


@pytest.mark.parametrize(
    ("timestamp", "now", "expected"),
    [(1000, 1000.0, 900.0), (1000, 1300.0, 600.0), (1000, 1900.0, 0.0), (1000, 5000.0, 0.0), (1000, 10.0, 900.0)],
)
def test_after_a_restart_only_the_rest_of_the_delay_is_waited_for(timestamp: int, now: float, expected: float) -> None:
    ready_at = ready_seconds(deletion(0, 10, timestamp=timestamp), now)
    assert remaining_seconds(ready_at, 900, now) == expected


def test_a_range_deletion_without_a_time_waits_for_the_whole_delay() -> None:
    ready_at = ready_seconds(deletion(0, 10), 1234.5)
    assert remaining_seconds(ready_at, 900, 1234.5) == 900


def test_the_range_of_a_deletion_has_encoded_keys() -> None:
    first, second, third = (range_of(deletion(low, high), KEY) for low, high in ((0, 10), (9.5, 11), (10, 11)))
    assert first.overlaps(second)
    assert not first.overlaps(third)


def test_the_range_of_a_deletion_older_than_the_refined_key_is_extended() -> None:
    refined = ShardKeyPattern.from_mapping({"a": 1, "b": 1})
    first, last = (range_of(deletion(low, high), refined) for low, high in ((0, 10), (10, MaxKey())))
    assert first.max_key == last.min_key
    assert last.max_key == refined.global_max_bytes()
