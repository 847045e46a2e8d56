"""Pipelines that count: what the shards count and what the router makes of it."""

from typing import Any

import bson
import pytest

from shardwright.router.pipelines.router_merge import Counting
from tests.router.pipelines.parsing import parsed

COUNTING = {"$group": {"_id": 1, "n": {"$sum": 1}}}


def counting(*stages: dict[str, Any]) -> Counting:
    found = Counting.of(parsed(*stages))
    assert found is not None
    return found


def on_shards(found: Counting) -> list[dict[str, Any]]:
    return [bson.decode(stage) for stage in found.shard_stages]


@pytest.mark.parametrize(
    "stage",
    [
        COUNTING,
        {"$group": {"_id": None, "n": {"$sum": 1}}},
        {"$group": {"_id": 1, "n": {"$count": {}}}},
        {"$count": "n"},
    ],
)
def test_counts_of_shards_are_added_up(stage: dict[str, Any]) -> None:
    found = counting({"$match": {"a": 1}}, stage)
    assert on_shards(found) == [{"$match": {"a": 1}}, stage]
    total = found.total([3, 0, 4])
    assert total is not None
    assert total["n"] == 7
    assert list(total) == (["n"] if "$count" in stage else ["_id", "n"])
    assert found.total([0, 0]) is None


def test_a_count_skips_and_limits_what_all_shards_have() -> None:
    found = counting({"$match": {}}, {"$skip": 10}, {"$limit": 20}, COUNTING)
    assert on_shards(found) == [{"$match": {}}, {"$limit": 30}, COUNTING]
    assert found.total([15, 30]) == {"_id": 1, "n": 20}
    assert found.total([5, 8]) == {"_id": 1, "n": 3}
    assert found.total([5, 2]) is None


@pytest.mark.parametrize(
    "stages",
    [
        [],
        [{"$match": {}}],
        [{"$group": {"_id": "$a", "n": {"$sum": 1}}}],
        [{"$group": {"_id": None, "n": {"$sum": "$a"}}}],
        [{"$group": {"_id": None, "n": {"$sum": True}}}],
        [{"$group": {"_id": None, "n": {"$sum": 1}, "m": {"$sum": 1}}}],
        [{"$group": 3}],
        [{"$count": 3}],
        [{"$sort": {"a": 1}}, COUNTING],
        [COUNTING, {"$match": {}}],
        [{"$limit": 0}, COUNTING],
        [{"$skip": 2**63 - 1}, {"$limit": 1}, COUNTING],
    ],
)
def test_everything_else_does_not_count(stages: list[dict[str, Any]]) -> None:
    assert Counting.of(parsed(*stages)) is None
