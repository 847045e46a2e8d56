"""Defragmentation in a simulated collection: small chunks disappear, and nothing leaves its zone."""

from dataclasses import dataclass

import bson
import pytest
from bson.max_key import MaxKey
from bson.min_key import MinKey
from hypothesis import given
from hypothesis import strategies as st

from shardwright.sharding.balancing.cluster_state import ZoneMap
from shardwright.sharding.balancing.defragmentation import (
    LARGE_BYTES,
    MeasuredChunk,
    Phase,
    choose_union,
    merged_size,
    runs,
    small_bytes,
)
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.shard_key import ShardKeyPattern

PATTERN = ShardKeyPattern.from_mapping({"x": 1})
SHARDS = ("a", "b", "c")
NO_ZONES = ZoneMap(PATTERN)
CHUNK_BYTES = 1000
SMALL = small_bytes(CHUNK_BYTES)


def span(low: object, high: object) -> ChunkRange:
    return ChunkRange.of(PATTERN, bson.encode({"x": low}), bson.encode({"x": high}))


def chunk(low: object, high: object, shard: str, size: int | None = None) -> MeasuredChunk:
    return MeasuredChunk(span(low, high), shard, size)


def zones_of(*ranges: tuple[int, int, str]) -> ZoneMap:
    return ZoneMap(PATTERN, [(bson.encode({"x": low}), bson.encode({"x": high}), zone) for low, high, zone in ranges])


def test_the_phases_follow_each_other() -> None:
    assert Phase.MERGE_AND_MEASURE.next is Phase.MOVE_AND_MERGE
    assert Phase.MOVE_AND_MERGE.next is Phase.MERGE
    assert Phase.MERGE.next is None


def test_runs_end_at_other_shards_zones_and_gaps() -> None:
    chunks = [
        chunk(0, 1, "a"),
        chunk(1, 2, "a"),
        chunk(2, 3, "b"),
        chunk(3, 4, "b"),
        chunk(4, 5, "b"),
        chunk(6, 7, "b"),
    ]
    zones = zones_of((4, 10, "z"))
    assert [len(run) for run in runs(chunks, zones)] == [2, 2, 1, 1]


@pytest.mark.parametrize(
    ("left", "right", "recipient", "parts"),
    [
        (("a", 10), ("b", LARGE_BYTES), "a", 2),  # a neighbour is on the same shard
        (("b", 10), ("c", LARGE_BYTES), "c", 2),  # to the larger one
        (("b", 210), ("c", 60), "b", 2),  # together they are not small any more
        (("b", LARGE_BYTES), ("b", 60), "b", 3),  # between two of one shard
        (("b", LARGE_BYTES), ("c", LARGE_BYTES), "b", 2),
        (("d", LARGE_BYTES), ("c", 10), "c", 2),  # d may not receive
        (("d", LARGE_BYTES), ("d", 10), None, 0),
    ],
)
def test_where_a_small_chunk_goes(
    left: tuple[str, int], right: tuple[str, int], recipient: str | None, parts: int
) -> None:
    neighbours = [chunk(0, 10, *left), chunk(20, 30, *right)]
    union = choose_union(chunk(10, 20, "a", 50), neighbours, NO_ZONES, lambda shard, zone: shard != "d", SMALL)
    assert (None if union is None else union.recipient) == recipient
    assert len(union.parts if union else ()) == parts


@dataclass
class World:
    """A collection whose chunks are defragmented, on three shards."""

    chunks: list[MeasuredChunk]
    zones: ZoneMap
    moved: int = 0

    def merge(self) -> None:
        self.chunks = [
            MeasuredChunk(
                ChunkRange(run[0].range.min, run[-1].range.max, run[0].range.min_key, run[-1].range.max_key),
                run[0].shard,
                merged_size(run, SMALL),
            )
            for run in runs(self.chunks, self.zones)
        ]

    def unite_small_chunks(self) -> None:
        """Deal with small chunks until nothing can be done about any of them."""
        is_done = False
        while not is_done:
            is_done = True
            for at, each in enumerate(self.chunks):
                if each.size is None or each.size >= SMALL:
                    continue
                neighbours = [self.chunks[other] for other in (at - 1, at + 1) if 0 <= other < len(self.chunks)]
                union = choose_union(each, neighbours, self.zones, self.may_receive, SMALL)
                if union is not None:
                    self.moved += union.is_move
                    self.chunks[at] = MeasuredChunk(each.range, union.recipient, each.size)
                    self.merge()
                    is_done = False
                    break

    @staticmethod
    def may_receive(shard: str, zone: str) -> bool:
        return zone == "" or shard in ("a", "b")


@given(
    st.lists(st.tuples(st.sampled_from(SHARDS), st.integers(0, 600)), min_size=1, max_size=40),
    st.lists(st.integers(1, 39), max_size=2, unique=True),
)
def test_small_chunks_disappear(placed: list[tuple[str, int]], bounds: list[int]) -> None:
    """As far as zones allow; fewer chunks are moved than there are small ones, and the chunks tile the key space."""
    zones = zones_of((min(bounds), max(bounds), "z")) if len(bounds) == 2 else NO_ZONES
    edges = [MinKey(), *range(1, len(placed)), MaxKey()]
    chunks = [
        chunk(edges[at], edges[at + 1], shard, size if size < SMALL else LARGE_BYTES)
        for at, (shard, size) in enumerate(placed)
    ]
    chunks = [each for each in chunks if not zones.bounds_inside(each.range)]
    world = World(chunks, zones)
    world.merge()
    small = sum(1 for each in world.chunks if each.size is not None and each.size < SMALL)
    before = [world.zones.zone_of(each.range.min_key) for each in world.chunks]
    world.unite_small_chunks()
    assert world.moved <= small
    for low, high in zip(world.chunks, world.chunks[1:], strict=False):
        assert low.range.max_key <= high.range.min_key
        is_stuck = zones.zone_of(low.range.min_key) != zones.zone_of(high.range.min_key)
        touch = low.range.max_key == high.range.min_key
        if touch and not is_stuck and "c" not in (low.shard, high.shard):
            assert (low.size or 0) >= SMALL
            assert (high.size or 0) >= SMALL
    assert set(before) == {zones.zone_of(each.range.min_key) for each in world.chunks}
