"""Counting operations by the part of a collection's owners that they were sent to."""

import bson
import pytest

from shardwright.router.context.statistics import TargetCounts
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.shard_key import ShardKeyPattern
from tests.sharding.targeting.placements import split_at


def table(owners: int) -> RoutingTable | None:
    """Of a collection that so many shards have parts of (``s0``, ``s1`` …); None for none of them."""
    splits = [bson.encode({"x": number}) for number in range(1, owners)]
    return split_at(ShardKeyPattern.from_mapping({"x": 1}), splits) if owners else None


@pytest.mark.parametrize(
    ("owners", "targeted", "part"),
    [
        (0, "s0", "unsharded"),
        (1, "s0", "oneShard"),
        (3, "s1", "oneShard"),
        (3, "s0 s2", "manyShards"),
        (3, "s0 s2 s0", "manyShards"),
        (3, "s0 s1 s2", "allShards"),
        (2, "s0 s1 s2", "allShards"),
        (2, "s1 s2", "allShards"),
    ],
)
def test_parts(owners: int, targeted: str, part: str) -> None:
    counts = TargetCounts()
    counts.note("find", targeted.split(), table(owners))
    document = counts.document()
    assert [name for name, count in document["find"].items() if count] == [part]
    assert not any(document["update"].values())


def test_what_is_not_counted() -> None:
    counts = TargetCounts()
    counts.note("count", ["s0"], table(1))
    counts.note("find", [], table(1))
    assert not any(count for parts in counts.document().values() for count in parts.values())


def test_what_reads_no_collection_counts_as_unsharded() -> None:
    counts = TargetCounts()
    counts.note("aggregate", ["s0"], None)
    assert counts.document()["aggregate"]["unsharded"] == 1
