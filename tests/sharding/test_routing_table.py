"""Routing tables: look-up, versions, history, and the errors for inconsistent reads."""

import tracemalloc
from dataclasses import replace
from itertools import pairwise

import bson
import pytest
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.timestamp import Timestamp

from shardwright.sharding.chunks import Chunk, ChunkHistory, ChunkPlacement
from shardwright.sharding.cluster_time import pack_timestamp
from shardwright.sharding.routing_table import RoutingTable, RoutingTableBuilder
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.targeting.targets import placement_at
from shardwright.sharding.versions import shard_version_element
from shardwright.wire.errors import CommandError
from tests.sharding.chunk_worlds import COLLECTION, PATTERN, bound, chunk, key, table_of, version, whole

LOW, HIGH = MinKey(), MaxKey()


def world() -> list[Chunk]:
    return [
        chunk(LOW, 0, "s1", 3, 1),
        chunk(0, 10, "s2", 2, 0),
        chunk(10, 20, "s1", 1, 3),
        chunk(20, HIGH, "s3", 3, 0),
    ]


@pytest.mark.parametrize(
    ("value", "shard"), [(LOW, "s1"), (-1, "s1"), (0, "s2"), (9.99, "s2"), (10, "s1"), ("text", "s3"), (HIGH, "s3")]
)
def test_shard_for_key(value: object, shard: str) -> None:
    assert table_of(world()).shard_for_key(key(value)) == shard


def test_chunk_for_key() -> None:
    found = table_of(world()).chunk_for_key(key(5))
    assert (bson.decode(found.min), bson.decode(found.max), found.shard) == ({"x": 0}, {"x": 10}, "s2")
    assert bson.decode(table_of(world()).chunk_for_key(key(99)).max) == {"x": HIGH}


@pytest.mark.parametrize(
    ("low", "high", "inclusive", "shards"),
    [
        (0, 10, False, {"s2"}),
        (0, 10, True, {"s1", "s2"}),
        (-5, 1, False, {"s1", "s2"}),
        (5, 25, False, {"s1", "s2", "s3"}),
        (30, 40, False, {"s3"}),
        (LOW, HIGH, True, {"s1", "s2", "s3"}),
        (7, 7, True, {"s2"}),
    ],
)
def test_shards_for_range(low: object, high: object, inclusive: bool, shards: set[str]) -> None:
    assert table_of(world()).shards_for_range(key(low), key(high), high_inclusive=inclusive) == shards


def test_shards_for_range_takes_any_byte_strings_as_bounds() -> None:
    assert table_of(world()).shards_for_range(b"", b"\xff") == {"s1", "s2", "s3"}


@pytest.mark.parametrize(("key", "min_value"), [(0, LOW), (5, 0), (10, 0), (11, 10), (20, 10), (99, 20)])
def test_chunk_before_key(key: int, min_value: object) -> None:
    table = table_of(world())
    found = table.chunk_before_key(table.key_pattern.key_bytes(bson.encode({"x": key})))
    assert bson.decode(found.min)["x"] == min_value


def test_the_chunk_before_the_global_max_is_the_last() -> None:
    table = table_of(world())
    assert bson.decode(table.chunk_before_key(table.key_pattern.global_max_bytes()).min)["x"] == 20


def test_versions() -> None:
    table = table_of(world())
    assert table.shards == {"s1", "s2", "s3"}
    assert table.collection_version == version(3, 1)
    assert table.shard_version("s1") == version(3, 1)
    assert table.shard_version("s2") == version(2, 0)
    assert table.shard_version("s4") == version(0, 0)
    assert table.shard_version_element("s2") == shard_version_element(version(2, 0))
    assert table.shard_version_element("s4") == shard_version_element(version(0, 0))
    assert [table.chunk_count_of(shard) for shard in ("s1", "s2", "s3", "s4")] == [2, 1, 1, 0]


def test_chunks_in_order() -> None:
    table = table_of(reversed(world()))
    assert [bson.decode(each.min)["x"] for each in table.chunks()] == [LOW, 0, 10, 20]
    assert [bson.decode(each.max)["x"] for each in table.chunks_of_shard("s1")] == [0, 20]


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        ([], "there are no chunks"),
        (world()[1:], "nothing lies before { x: 0 }"),
        (world()[:-1], "nothing lies after { x: 20 }"),
        ([world()[0], *world()[2:]], "gap between { x: 0 } and { x: 10 }"),
        ([world()[0], chunk(0, 15, "s2", 2, 0), *world()[2:]], "overlap between { x: 15 } and { x: 10 }"),
        ([*world(), chunk(10, 20, "s2", 9, 0)], "overlap between { x: 20 } and { x: 10 }"),
    ],
)
def test_chunks_that_do_not_tile_the_key_space(chunks: list[Chunk], message: str) -> None:
    with pytest.raises(CommandError) as caught:
        table_of(chunks)
    assert caught.value.code == 117
    assert caught.value.message.endswith(message)


def test_bounds_that_touch_may_be_written_differently() -> None:
    chunks = [chunk(LOW, 5, "s1", 1, 0), chunk(5.0, HIGH, "s2", 1, 1)]
    assert table_of(chunks).shard_for_key(key(5)) == "s2"


def test_a_change_of_collection_keeps_the_chunks() -> None:
    table = table_of(world())
    changed = table.with_changed_chunks([], replace(COLLECTION, allow_migrations=False))
    assert not changed.collection.allow_migrations
    assert changed.collection_version == table.collection_version
    assert list(changed.chunks()) == list(table.chunks())


def test_changed_chunks_replace_what_they_overlap() -> None:
    table = table_of(world())
    split = [chunk(20, 30, "s3", 3, 2), chunk(30, HIGH, "s3", 3, 3)]
    after = table.with_changed_chunks(each.placement for each in split)
    assert [bson.decode(each.min)["x"] for each in after.chunks()] == [LOW, 0, 10, 20, 30]
    assert after.collection_version == version(3, 3)
    assert after.chunk_count == 5
    assert table.chunk_count == 4


def test_of_changed_chunks_that_overlap_the_newest_counts() -> None:
    before_and_after_a_split = [
        chunk(0, 10, "s2", 3, 2),
        chunk(0, 5, "s2", 3, 3),
        chunk(5, 10, "s2", 3, 4),
        chunk(LOW, 0, "s1", 3, 1),
    ]
    after = table_of(world()).with_changed_chunks(each.placement for each in before_and_after_a_split)
    assert [bson.decode(each.min)["x"] for each in after.chunks()] == [LOW, 0, 5, 10, 20]


@pytest.mark.parametrize(
    "changed",
    [
        [chunk(0, 5, "s2", 4, 0)],
        [chunk(5, 10, "s2", 4, 0)],
        [chunk(5, 15, "s2", 4, 0)],
        [chunk(0, 5, "s2", 4, 0), chunk(6, 10, "s2", 4, 1)],
        [chunk(25, HIGH, "s2", 4, 0)],
        [chunk(LOW, -5, "s2", 4, 0)],
    ],
)
def test_changes_that_leave_part_of_a_chunk_over(changed: list[Chunk]) -> None:
    with pytest.raises(CommandError) as caught:
        table_of(world()).with_changed_chunks(each.placement for each in changed)
    assert caught.value.code == 117


def test_a_shard_that_lost_its_highest_chunk_without_a_control_chunk() -> None:
    chunks = [chunk(LOW, 0, "s1", 5, 0), chunk(0, 10, "s1", 1, 2), chunk(10, HIGH, "s2", 4, 0)]
    after = table_of(chunks).with_changed_chunks([chunk(LOW, 0, "s2", 6, 0).placement])
    assert after.shard_version("s1") == version(1, 2)
    assert after.shard_version("s2") == version(6, 0)


def test_a_shard_that_lost_its_last_chunk() -> None:
    after = table_of(world()).with_changed_chunks([chunk(0, 10, "s1", 4, 0).placement])
    assert after.shards == {"s1", "s3"}
    assert after.shard_version("s2") == version(0, 0)


def moved(*history: tuple[int, str]) -> Chunk:
    entries = tuple(ChunkHistory(Timestamp(seconds, 0), shard) for seconds, shard in history)
    return replace(whole(history[0][1]), history=entries)


def test_owner_in_the_past() -> None:
    table = table_of([moved((300, "s3"), (200, "s2"), (100, "s1"))])
    for seconds, shard in ((400, "s3"), (300, "s3"), (299, "s2"), (200, "s2"), (100, "s1")):
        assert table.shard_for_key_at(key(0), Timestamp(seconds, 0)) == shard
        assert table.shards_for_range_at(key(0), key(9), Timestamp(seconds, 0)) == {shard}


def test_when_a_key_was_given_away() -> None:
    table = table_of([moved((400, "s1"), (300, "s3"), (200, "s2"), (100, "s1"))])

    def given(shard: str, seconds: int) -> tuple[int, str] | None:
        found = table.given_away(key(0), shard, Timestamp(seconds, 0))
        return None if found is None else (found[0].time, found[1])

    assert given("s1", 500) is None, "it owns the key again"
    assert given("s1", 399) == given("s1", 200) == (200, "s2")
    assert given("s2", 500) == (300, "s3")
    assert given("s3", 399) is None
    assert given("s3", 299) is None, "it did not own the key before"
    assert given("s1", 99) is None, "nothing is known"


def test_a_placement_of_the_past() -> None:
    chunks = [
        replace(each, history=tuple(ChunkHistory(Timestamp(seconds, 0), shard) for seconds, shard in history))
        for each, history in zip(
            world(),
            (
                ((100, "s1"),),
                ((300, "s2"), (200, "s4"), (100, "s1")),
                ((100, "s1"),),
                ((250, "s3"), (100, "s1")),
            ),
            strict=True,
        )
    ]
    table = table_of(chunks)
    assert table.newest_valid_after == pack_timestamp(Timestamp(300, 0))
    assert placement_at(table, Timestamp(300, 0)) is table
    before = placement_at(table, Timestamp(299, 0))
    assert before.shards == {"s1", "s3", "s4"}
    assert before.shards_for_range(key(-1), key(1)) == {"s1", "s4"}
    assert before.shard_for_key(key(5)) == "s4"
    assert placement_at(table, Timestamp(150, 0)).shards == {"s1"}
    with pytest.raises(CommandError) as caught:
        _ = placement_at(table, Timestamp(99, 0)).shards
    assert caught.value.code == 250


def test_a_move_is_known_as_the_newest_after_a_refresh() -> None:
    late = replace(chunk(0, 10, "s1", 4, 0), history=(ChunkHistory(Timestamp(9000, 1), "s1"),))
    table = table_of(world()).with_changed_chunks([late.placement])
    assert table.newest_valid_after == pack_timestamp(Timestamp(9000, 1))


def test_owner_before_all_history() -> None:
    table = table_of([moved((300, "s3"), (200, "s2"))])
    with pytest.raises(CommandError) as caught:
        table.shard_for_key_at(key(0), Timestamp(199, 9))
    assert caught.value.code == 250
    with pytest.raises(CommandError) as caught:
        table.shards_for_range_at(key(0), key(1), Timestamp(199, 9))
    assert caught.value.code == 250


def test_a_chunk_without_history_was_always_there() -> None:
    assert table_of([replace(whole(), history=())]).shard_for_key_at(key(0), Timestamp(1, 0)) == "s1"


def test_compound_keys() -> None:
    pattern = ShardKeyPattern.from_mapping({"a": 1, "b": 1})
    middle = bson.encode({"a": 5, "b": LOW})
    chunks = [
        replace(whole("s1"), min=pattern.global_min(), max=middle),
        replace(whole("s2"), min=middle, max=pattern.global_max()),
    ]
    table = RoutingTable.build(replace(COLLECTION, key_pattern=pattern), [each.placement for each in chunks])
    assert table.shard_for_key(pattern.key_bytes(bson.encode({"a": 4, "b": "z"}))) == "s1"
    assert table.shard_for_key(pattern.key_bytes(bson.encode({"a": 5, "b": None}))) == "s2"


def many(count: int) -> list[Chunk]:
    bounds = [LOW, *range(1, count), HIGH]
    return [chunk(bounds[n], bounds[n + 1], f"s{n % 3}", 1, n) for n in range(count)]


def test_tables_of_many_blocks() -> None:
    table = table_of(many(2000))
    assert [table.shard_for_key(key(value)) for value in (0, 1, 255, 256, 257, 1999, 5000)] == [
        f"s{n % 3}" for n in (0, 1, 255, 256, 257, 1999, 1999)
    ]
    assert table.shards_for_range(key(600), key(601)) == {"s0"}
    assert table.shards_for_range(key(255), key(257)) == {"s0", "s1"}
    assert bson.decode(table.chunk_for_key(key(255)).max) == {"x": 256}


def test_a_merge_over_many_blocks() -> None:
    table = table_of(many(2000))
    after = table.with_changed_chunks([chunk(100, 1900, "s9", 2, 0).placement])
    assert after.chunk_count == 201
    assert after.shard_for_key(key(1000)) == "s9"
    assert after.shard_for_key(key(1900)) == "s1"
    assert after.shards_for_range(key(99), key(100)) == {"s0"}
    assert after.shards_for_range(key(99), key(1901)) == {"s0", "s9", "s1"}


def test_merging_everything_leaves_no_empty_blocks() -> None:
    table = table_of(many(5000))
    for low in range(0, 5000, 250):
        first = LOW if low == 0 else low
        last = HIGH if low == 4750 else low + 250
        table = table.with_changed_chunks([chunk(first, last, "s9", 2, low).placement])
    assert table.chunk_count == 20
    assert table.shards == {"s9"}
    assert [bson.decode(each.min)["x"] for each in table.chunks()] == [LOW, *range(250, 5000, 250)]


@pytest.mark.parametrize("count", [4, 2000])
def test_ranges_by_ownership_tile_the_key_space(count: int) -> None:
    table = table_of(many(count)).with_changed_chunks([chunk(2, 3, "s0", 2, 0).placement])
    for shard in ("s0", "s1", "s2", "s9"):
        ranges = list(table.ranges_by_ownership(shard))
        assert (ranges[0][1].min, ranges[-1][1].max) == (PATTERN.global_min(), PATTERN.global_max())
        for (was_owned, before), (is_owned, after) in pairwise(ranges):
            assert (before.max, before.max_key) == (after.min, after.min_key)
            assert was_owned is not is_owned
        owned = {table.chunk_for_key(part.min_key).shard for is_owned, part in ranges if is_owned}
        others = {table.chunk_for_key(part.min_key).shard for is_owned, part in ranges if not is_owned}
        assert owned <= {shard}
        assert shard not in others


def test_one_changed_chunk_is_all_that_changed() -> None:
    before = table_of(many(5000))
    after = before.with_changed_chunks([chunk(1000, 1001, "s9", 2, 0).placement])
    assert [each.min for each in after.placements_since(before)] == [bound(1000)]
    assert after.chunk_count == before.chunk_count


@pytest.mark.parametrize("field", ["x", "a_field_with_a_rather_long_name"])
@pytest.mark.parametrize("direction", [1, "hashed"])
def test_a_chunk_takes_less_than_a_hundred_bytes(field: str, direction: int | str) -> None:
    count = 20_000
    values = (
        [bson.Int64(n * 2**64 // count - 2**63) for n in range(1, count)] if direction == "hashed" else range(1, count)
    )
    bounds = [bson.encode({field: value}) for value in (LOW, *values, HIGH)]
    collection = replace(COLLECTION, key_pattern=ShardKeyPattern.from_mapping({field: direction}))
    history = ((pack_timestamp(Timestamp(9, 1)), "s1"),)
    tracemalloc.start()
    try:
        builder = RoutingTableBuilder(collection)
        builder.add(
            ChunkPlacement(bytes(bytearray(low)), high, f"s{n % 5}", 1 << 32 | n, history)
            for n, (low, high) in enumerate(pairwise(bounds))
        )
        table = builder.finish()
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert table.chunk_count == count
    assert used < 100 * count
