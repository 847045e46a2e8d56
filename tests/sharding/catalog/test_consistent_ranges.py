"""Each kind of damage to the chunks and zones of one collection is found, and nothing else is."""

from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from bson.max_key import MaxKey
from bson.min_key import MinKey
from hypothesis import given
from hypothesis import strategies as st

from shardwright.sharding.catalog.consistency import RangeCheck
from shardwright.sharding.shard_key import ShardKeyPattern

LOW, HIGH = MinKey(), MaxKey()
CHECK = RangeCheck("d.c", UUID(int=7), ShardKeyPattern.from_mapping({"x": 1}))


def ranges(*bounds: tuple[object, object]) -> list[dict[str, Any]]:
    return [{"min": {"x": low}, "max": {"x": high}, "shard": "a"} for low, high in bounds]


def kinds(found: list[dict[str, Any]]) -> list[str]:
    for each in found:
        assert each["details"]["namespace"] == "d.c"
        assert each["details"]["collectionUUID"].as_uuid() == UUID(int=7)
        assert each["description"]
    return [each["type"] for each in found]


@given(points=st.sets(st.integers() | st.text(max_size=3), max_size=8))
def test_chunks_that_tile_are_consistent(points: set[int | str]) -> None:
    ordered = sorted(point for point in points if isinstance(point, int) and abs(point) < 2**63)
    bounds = [LOW, *ordered, *sorted(point for point in points if isinstance(point, str)), HIGH]
    assert not list(CHECK.chunks(ranges(*pairwise(bounds))))


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([], ["MissingRoutingTable"]),
        ([(LOW, 0), (1, HIGH)], ["RoutingTableRangeGap"]),
        ([(LOW, 1), (0, HIGH)], ["RoutingTableRangeOverlap"]),
        ([(0, HIGH)], ["RoutingTableMissingMinKey"]),
        ([(LOW, 0)], ["RoutingTableMissingMaxKey"]),
        ([(LOW, 0), (2, 5), (4, 9)], ["RoutingTableRangeGap", "RoutingTableRangeOverlap", "RoutingTableMissingMaxKey"]),
        ([(LOW, 0), (0.0, HIGH)], []),
    ],
)
def test_damage_to_chunks_is_found(chunks: list[tuple[object, object]], expected: list[str]) -> None:
    assert kinds(list(CHECK.chunks(ranges(*chunks)))) == expected


@pytest.mark.parametrize("bound", [{"y": 0}, {"x": 0, "y": 0}, {}, {"x": [1]}, None])
def test_a_bound_that_is_no_key_is_found(bound: object) -> None:
    chunks = ranges((LOW, 0), (0, HIGH))
    damaged = {**chunks[0], "max": bound}
    assert kinds(list(CHECK.chunks([damaged, *chunks]))) == ["CorruptedChunkShardKey"]


@pytest.mark.parametrize(
    ("zones", "expected"),
    [
        ([], []),
        ([(LOW, 0), (0, 5), (7, HIGH)], []),
        ([(LOW, 1), (0, 5)], ["ZonesRangeOverlap"]),
        ([(0, 5), (0, 5)], ["ZonesRangeOverlap"]),
    ],
)
def test_zones_may_leave_gaps_but_not_overlap(zones: list[tuple[object, object]], expected: list[str]) -> None:
    assert kinds(list(CHECK.zones(ranges(*zones)))) == expected


def test_a_zone_of_other_fields_is_found_but_one_of_a_prefix_is_not_damaged() -> None:
    check = RangeCheck("d.c", UUID(int=7), ShardKeyPattern.from_mapping({"x": 1, "y": 1}))
    assert not list(check.zones(ranges((0, 5))))
    assert kinds(list(check.zones([{"min": {"y": 0}, "max": {"y": 5}}]))) == ["CorruptedZoneShardKey"]
