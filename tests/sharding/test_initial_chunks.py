"""First chunks; all expected bounds and shards were read off MongoDB 6.0.5 with three shards."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import bson
import pytest
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey

from shardwright.sharding.initial_chunks import InitialPlacement, ZoneRange, make_initial_chunks, plan_initial_chunks
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.errors import CommandError
from tests.sharding.chunk_worlds import TIME, new_id, version

LOW, HIGH = MinKey(), MaxKey()
SHARDS_OF_ZONE = {"A": ["sh1", "sh2"], "B": ["sh2"], "C": ["sh3"]}
THIRD = 3074457345618258602


def placement(
    pattern: Mapping[str, object], zones: Sequence[tuple[dict[str, Any], dict[str, Any], str]] = (), **options: object
) -> InitialPlacement:
    three_shards = InitialPlacement(
        ShardKeyPattern.from_mapping(pattern),
        primary_shard="sh1",
        shards=("sh3", "sh1", "sh2"),
        is_empty=True,
        zones=[ZoneRange(bson.encode(low), bson.encode(high), zone) for low, high, zone in zones],
        shards_of_zone=SHARDS_OF_ZONE,
    )
    return replace(three_shards, **options)  # type: ignore[arg-type]  # whatever fields the test sets


def plan(
    pattern: Mapping[str, object], zones: Sequence[tuple[dict[str, Any], dict[str, Any], str]] = (), **options: object
) -> list[tuple[list[object], str]]:
    planned = plan_initial_chunks(placement(pattern, zones, **options))
    assert [each.max for each in planned[:-1]] == [each.min for each in planned[1:]]
    return [(list(bson.decode(each.min).values()), each.shard) for each in planned]


def hashed(count: int) -> list[tuple[object, str]]:
    return [(bounds[0], shard) for bounds, shard in plan({"x": "hashed"}, num_initial_chunks=count)]


def test_ranged_key_begins_with_one_chunk_on_the_primary_shard() -> None:
    assert plan({"x": 1}) == [([LOW], "sh1")]
    assert plan({"c": 1, "x": "hashed"}) == [([LOW, LOW], "sh1")]


def test_a_collection_with_data_begins_with_one_chunk() -> None:
    assert plan({"x": "hashed"}, is_empty=False) == [([LOW], "sh1")]


def test_hashed_key_begins_with_two_chunks_per_shard() -> None:
    assert hashed(0) == [
        (LOW, "sh1"),
        (-2 * THIRD, "sh1"),
        (-THIRD, "sh2"),
        (0, "sh2"),
        (THIRD, "sh3"),
        (2 * THIRD, "sh3"),
    ]


def test_hashed_split_points_are_int64() -> None:
    assert all(isinstance(value, Int64) for value, _ in hashed(4)[1:])


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (1, [(LOW, "sh1")]),
        (2, [(LOW, "sh1"), (0, "sh2")]),
        (4, [(LOW, "sh1"), (-4611686018427387902, "sh2"), (0, "sh3"), (4611686018427387902, "sh1")]),
        (
            5,
            [
                (LOW, "sh1"),
                (-5534023222112865483, "sh2"),
                (-1844674407370955161, "sh3"),
                (1844674407370955161, "sh1"),
                (5534023222112865483, "sh2"),
            ],
        ),
        (
            7,
            [
                (LOW, "sh1"),
                (-6588122883467697005, "sh1"),
                (-3952873730080618203, "sh2"),
                (-1317624576693539401, "sh2"),
                (1317624576693539401, "sh3"),
                (3952873730080618203, "sh3"),
                (6588122883467697005, "sh1"),
            ],
        ),
    ],
)
def test_hashed_key_with_a_wished_number_of_chunks(count: int, expected: list[tuple[object, str]]) -> None:
    assert hashed(count) == expected


def test_nine_hashed_chunks_lie_three_by_three() -> None:
    assert [shard for _, shard in hashed(9)] == ["sh1"] * 3 + ["sh2"] * 3 + ["sh3"] * 3


def test_fields_behind_the_hashed_one_begin_at_min_key() -> None:
    assert plan({"x": "hashed", "y": 1})[1] == ([-2 * THIRD, LOW], "sh1")


def test_zones_get_one_chunk_each_and_holes_go_round_all_shards() -> None:
    zones = [({"x": 0}, {"x": 10}, "A"), ({"x": 10}, {"x": 20}, "A"), ({"x": 30}, {"x": 40}, "C")]
    assert plan({"x": 1}, zones) == [
        ([LOW], "sh1"),
        ([0], "sh1"),
        ([10], "sh2"),
        ([20], "sh2"),
        ([30], "sh3"),
        ([40], "sh3"),
    ]
    hashed_zone = [({"x": Int64(0)}, {"x": Int64(10)}, "B")]
    assert plan({"x": "hashed"}, hashed_zone) == [([LOW], "sh1"), ([0], "sh2"), ([10], "sh2")]


COUNTRIES = [({"c": "a", "x": LOW}, {"c": "f", "x": LOW}, "A"), ({"c": "k", "x": LOW}, {"c": "p", "x": LOW}, "B")]


def test_presplit_zones() -> None:
    assert plan({"c": 1, "x": "hashed"}, COUNTRIES, presplit_hashed_zones=True) == [
        ([LOW, LOW], "sh1"),
        (["a", LOW], "sh1"),
        (["a", -THIRD], "sh1"),
        (["a", THIRD], "sh2"),
        (["f", LOW], "sh2"),
        (["k", LOW], "sh2"),
        (["p", LOW], "sh3"),
    ]


def test_presplit_zones_with_a_wished_number_of_chunks() -> None:
    planned = plan({"c": 1, "x": "hashed"}, COUNTRIES, presplit_hashed_zones=True, num_initial_chunks=7)
    assert planned == [
        ([LOW, LOW], "sh1"),
        (["a", LOW], "sh1"),
        (["a", -2 * THIRD], "sh1"),
        (["a", -THIRD], "sh1"),
        (["a", 0], "sh1"),
        (["a", THIRD], "sh2"),
        (["a", 2 * THIRD], "sh2"),
        (["f", LOW], "sh2"),
        (["k", LOW], "sh2"),
        (["k", 0], "sh2"),
        (["p", LOW], "sh3"),
    ]


def test_presplit_of_a_hashed_prefix() -> None:
    planned = plan({"x": "hashed"}, [({"x": LOW}, {"x": HIGH}, "A")], presplit_hashed_zones=True, num_initial_chunks=5)
    assert [shard for _, shard in planned] == ["sh1"] * 3 + ["sh2"] * 3


@pytest.mark.parametrize(
    ("pattern", "zones", "code"),
    [
        ({"c": 1}, [], 31387),
        ({"c": 1, "x": "hashed"}, [], 31387),
        ({"x": "hashed"}, [({"x": Int64(0)}, {"x": HIGH}, "A")], 31412),
        ({"c": 1, "x": "hashed"}, [({"c": LOW, "x": LOW}, {"c": "a", "x": LOW}, "A")], 31388),
        ({"c": 1, "x": "hashed"}, [({"c": "a", "x": Int64(4)}, {"c": "b", "x": LOW}, "A")], 31389),
        ({"c": 1, "x": "hashed"}, [({"c": "a", "x": LOW}, {"c": "a", "x": HIGH}, "A")], 31390),
        (
            {"c": 1, "x": "hashed", "z": 1},
            [({"c": "a", "x": LOW, "z": 5}, {"c": "b", "x": HIGH, "z": LOW}, "A")],
            31391,
        ),
        ({"c": 1, "x": "hashed"}, [({"c": "a", "x": LOW}, {"c": "b", "x": LOW}, "nowhere")], 50973),
    ],
)
def test_zones_that_cannot_be_presplit(pattern: dict[str, Any], zones: list[Any], code: int) -> None:
    with pytest.raises(CommandError) as caught:
        plan(pattern, zones, presplit_hashed_zones=True)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("pattern", "options"),
    [
        ({"x": "hashed"}, {"num_initial_chunks": -1}),
        ({"x": "hashed"}, {"num_initial_chunks": 24577}),
        ({"x": 1}, {"num_initial_chunks": 4}),
        ({"c": 1, "x": "hashed"}, {"num_initial_chunks": 4}),
        ({"x": "hashed"}, {"num_initial_chunks": 4, "is_empty": False}),
    ],
)
def test_options_that_do_not_go_together(pattern: dict[str, Any], options: dict[str, Any]) -> None:
    with pytest.raises(CommandError) as caught:
        plan(pattern, **options)
    assert caught.value.code == 72


def test_brought_split_points_are_sorted_and_made_unique() -> None:
    points = [bson.encode({"x": value}) for value in (20, 10, 10.0)]
    assert plan({"x": 1}, split_points=points) == [([LOW], "sh1"), ([10], "sh2"), ([20], "sh3")]


def test_versions_and_history_of_first_chunks() -> None:
    planned = plan_initial_chunks(placement({"x": "hashed"}))
    chunks = make_initial_chunks(planned, uuid=UUID(int=1), first_version=version(1, 0), new_id=new_id)
    assert [(each.version.major, each.version.minor) for each in chunks] == [(1, n) for n in range(6)]
    assert all([(entry.valid_after, entry.shard) for entry in each.history] == [(TIME, each.shard)] for each in chunks)
