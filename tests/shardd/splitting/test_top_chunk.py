"""Chunks that get a split point at their extreme key."""

from itertools import pairwise

import bson
import pytest
from bson.max_key import MaxKey
from bson.min_key import MinKey

from shardwright.shardd.splitting.chunk_splitter import HotEnd, hot_end, with_extreme_point
from shardwright.sharding.routing_table import RoutingTable
from tests.sharding.chunk_worlds import COLLECTION, bound, chunk, key


def table(*bounds: int) -> RoutingTable:
    edges = [MinKey(), *bounds, MaxKey()]
    chunks = [chunk(low, high, "a", 1, number) for number, (low, high) in enumerate(pairwise(edges))]
    return RoutingTable.build(COLLECTION, [each.placement for each in chunks])


def test_the_ends_of_a_collection_are_hot() -> None:
    placed = table(0, 10)
    assert hot_end(placed, placed.chunk_for_key(key(-5))) is HotEnd.LOWEST
    assert hot_end(placed, placed.chunk_for_key(key(5))) is None
    assert hot_end(placed, placed.chunk_for_key(key(15))) is HotEnd.HIGHEST
    only = table()
    assert hot_end(only, only.chunk_for_key(key(0))) is HotEnd.LOWEST


@pytest.mark.parametrize(
    ("end", "at", "points", "extreme", "expected"),
    [
        (HotEnd.HIGHEST, 50, [20, 30], 99, [20, 99]),
        (HotEnd.HIGHEST, 50, [20], 99, [99]),
        (HotEnd.HIGHEST, 50, [20, 30], None, None),
        (HotEnd.HIGHEST, 50, [20, 30], 10, None),  # all documents have the same key
        (HotEnd.LOWEST, -5, [-20, -10], -90, [-90, -10]),
        (HotEnd.LOWEST, -5, [-20], -20, [-20]),
        (HotEnd.HIGHEST, 50, [20, 30], 20, None),
    ],
)
def test_the_extreme_key_replaces_a_point(
    end: HotEnd, at: int, points: list[int], extreme: int | None, expected: list[int] | None
) -> None:
    placed = table(0, 10)
    found = with_extreme_point(
        [bound(each) for each in points],
        None if extreme is None else bound(extreme),
        end,
        placed,
        placed.chunk_for_key(key(at)),
    )
    assert (None if found is None else [bson.decode(each)["x"] for each in found]) == expected
