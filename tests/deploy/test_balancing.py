"""The map of chunks, and the output of ``shardwright balancer --explain`` for each kind of decision."""

from typing import Any

import pytest
from bson import MaxKey, MinKey

from shardwright.deploy.balancing import MAP_WIDTH, Chunk, ChunkMap, draw, explanation_text

BOUNDS: dict[str, Any] = {"min": {"x": 0}, "max": {"x": 10}}
IN_PLACE: dict[str, Any] = {"ns": "db.c", "shard": "a", **BOUNDS}
MOVE: dict[str, Any] = {"ns": "db.c", "from": "a", "to": "b", **BOUNDS}


def chunk_map(owners: str, bounds: list[object] | None = None) -> ChunkMap:
    """A map whose chunks belong to the shards numbered by the digits of ``owners``."""
    inner = bounds or list(range(1, len(owners)))
    points = [MinKey(), *inner, MaxKey()]
    chunks = tuple(
        Chunk({"k": points[index]}, {"k": points[index + 1]}, f"shard{owner}") for index, owner in enumerate(owners)
    )
    return ChunkMap("db.c", {"k": 1}, chunks)


def test_each_chunk_is_a_block_in_the_row_of_its_shard() -> None:
    lines = draw(chunk_map("0101"), ["shard0", "shard1"]).splitlines()
    block, gap = "█" * (MAP_WIDTH // 4), "·" * (MAP_WIDTH // 4)
    assert lines[:3] == [
        "db.c { k: 1 }: 4 chunks",
        f"  shard0 {block}{gap}{block}{gap}    2",
        f"  shard1 {gap}{block}{gap}{block}    2",
    ]
    assert [line.strip() for line in lines[3:]] == [
        "[MinKey , 1     ) shard0",
        "[     1 , 2     ) shard1",
        "[     2 , 3     ) shard0",
        "[     3 , MaxKey) shard1",
    ]


def test_shard_without_chunks_has_an_empty_row() -> None:
    lines = draw(chunk_map("0"), ["shard0", "shard1"]).splitlines()
    assert lines[0] == "db.c { k: 1 }: 1 chunk"
    assert lines[2] == f"  shard1 {'·' * MAP_WIDTH}    0"


def test_many_chunks_share_columns_and_no_owner_disappears() -> None:
    lines = draw(chunk_map("0" * 500 + "1" + "0" * 499), ["shard0", "shard1"]).splitlines()
    assert lines[2].count("█") == 1
    assert len(lines[1]) == len(lines[2])
    assert "… 990 more" in lines[8]


def test_long_bounds_are_truncated() -> None:
    assert "x" * 23 + "…" in draw(chunk_map("01", ["x" * 100]), ["shard0", "shard1"])


@pytest.mark.parametrize(
    ("decision", "line"),
    [
        (
            {"action": "split", **IN_PLACE, "splitKeys": [{"x": 5}], "rule": "zoneBoundary"},
            "split db.c [0, 10) on a at 5: zoneBoundary",
        ),
        (
            {"action": "moveChunk", **MOVE, "rule": "moveAndMergeChunks", "bytes": 1000, "neighbours": 2},
            "move db.c [0, 10) a -> b: moveAndMergeChunks (bytes 1,000, neighbours 2)",
        ),
        (
            {"action": "moveRange", **{**MOVE, "max": {"x": 10}}, "rule": "draining", "zone": "z", "bytes": 5},
            "move db.c [0, 10) a -> b: draining, zone z (bytes 5)",
        ),
        (
            {"action": "mergeChunks", **IN_PLACE, "rule": "mergeChunks", "zone": "z", "chunks": 3},
            "merge db.c [0, 10) on a: mergeChunks, zone z (chunks 3)",
        ),
        (
            {"action": "measureChunk", **IN_PLACE, "rule": "mergeAndMeasureChunks", "smallBelowBytes": 4096},
            "measure db.c [0, 10) on a: mergeAndMeasureChunks (smallBelowBytes 4,096)",
        ),
    ],
)
def test_decisions(decision: dict[str, Any], line: str) -> None:
    assert explanation_text(explained(decisions=[decision])).splitlines()[1:] == [f"  {line}"]


def test_chunks_that_are_left_alone() -> None:
    skipped = {"ns": "db.c", "rule": "moveAndMergeChunks", "shard": "a", **BOUNDS, "reason": "it has no neighbour"}
    text = explanation_text(explained(skipped=[skipped]))
    assert text.splitlines()[1:] == [
        "nothing to do",
        "  left alone: db.c, a, moveAndMergeChunks [0, 10): it has no neighbour",
    ]


def explained(**fields: list[dict[str, Any]]) -> dict[str, Any]:
    return {"balancerPolicy": "dataSize", "enabled": True, "decisions": [], "skipped": [], "heldBack": [], **fields}
