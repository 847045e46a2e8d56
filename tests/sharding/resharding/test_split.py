"""The chunks of the new shard key: they cover everything once, respect zones, and are spread evenly."""

from collections import Counter
from itertools import pairwise

import bson
import pytest
from bson import MaxKey, MinKey
from hypothesis import given
from hypothesis import strategies as st

from shardwright.sharding.initial_chunks import (
    RESHARDING_ZONE_WITHOUT_SHARDS,
    TOO_FEW_KEYS,
    PlannedChunk,
    ZoneRange,
    plan_chunks,
)
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.errors import CommandError

PATTERN = ShardKeyPattern.from_mapping({"k": 1})
SHARDS = ("s0", "s1", "s2")


def key(value: object) -> bytes:
    return bson.encode({"k": value})


def bounds(plan: list[PlannedChunk]) -> list[object]:
    return [bson.decode(each.min)["k"] for each in plan] + [bson.decode(plan[-1].max)["k"]]


def check_covers_everything(plan: list[PlannedChunk]) -> None:
    assert plan[0].min == PATTERN.global_min()
    assert plan[-1].max == PATTERN.global_max()
    for one, following in pairwise(plan):
        assert one.max == following.min
    assert all(PATTERN.key_bytes(each.min) < PATTERN.key_bytes(each.max) for each in plan)


@given(st.lists(st.integers(-50, 50)), st.integers(1, 20))
def test_there_are_as_many_chunks_as_wanted_or_none(values: list[int], count: int) -> None:
    samples = [key(value) for value in values]
    if len(set(values)) < count - 1:
        with pytest.raises(CommandError) as caught:
            plan_chunks(PATTERN, count, samples, SHARDS)
        assert caught.value.code == TOO_FEW_KEYS
        return
    plan = plan_chunks(PATTERN, count, samples, SHARDS)
    assert len(plan) == count
    check_covers_everything(plan)
    numbers = Counter(each.shard for each in plan)
    assert max(numbers.values()) - min(numbers[shard] for shard in SHARDS) <= 1


@given(st.permutations(range(100)))
def test_chunks_are_even(values: list[int]) -> None:
    plan = plan_chunks(PATTERN, 4, [key(value) for value in values], SHARDS)
    assert bounds(plan) == [MinKey(), 25, 50, 75, MaxKey()]


def test_zones_get_chunks_of_their_own_on_their_shards() -> None:
    zones = [ZoneRange(key(20), key(30), "east"), ZoneRange(key(0), key(20), "west")]
    plan = plan_chunks(PATTERN, 1, [], SHARDS, zones, {"east": ["s2"], "west": ["s1"]})
    check_covers_everything(plan)
    assert bounds(plan) == [MinKey(), 0, 20, 30, MaxKey()]
    assert [each.shard for each in plan][1:3] == ["s1", "s2"]


def test_zones_are_split_further() -> None:
    zones = [ZoneRange(PATTERN.global_min(), key(50), "low")]
    plan = plan_chunks(PATTERN, 4, [key(value) for value in range(100)], SHARDS, zones, {"low": ["s1", "s2"]})
    check_covers_everything(plan)
    assert len(plan) == 4
    assert all(
        (each.shard in ("s1", "s2")) for each in plan if PATTERN.key_bytes(each.min) < PATTERN.key_bytes(key(50))
    )


def test_a_zone_without_shards() -> None:
    with pytest.raises(CommandError) as caught:
        plan_chunks(PATTERN, 1, [], SHARDS, [ZoneRange(key(0), key(1), "none")], {})
    assert caught.value.code == RESHARDING_ZONE_WITHOUT_SHARDS


def test_thousands_of_zones() -> None:
    zones = [ZoneRange(key(3 * each), key(3 * each + 2), ("east", "west")[each % 2]) for each in range(5_000)]
    plan = plan_chunks(PATTERN, 1, [], SHARDS, zones, {"east": ["s2"], "west": ["s1"]})
    check_covers_everything(plan)
    shards = {bson.decode(chunk.min)["k"]: chunk.shard for chunk in plan}
    assert {shards[3 * each] for each in range(0, 5_000, 2)} == {"s2"}
    assert {shards[3 * each] for each in range(1, 5_000, 2)} == {"s1"}
    assert {shards[3 * each + 2] for each in range(4_999)} == set(SHARDS)
