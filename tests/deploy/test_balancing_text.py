"""The output of ``shardwright balancer --explain`` for each kind of decision."""

from typing import Any

import pytest

from shardwright.deploy.balancing import explanation_text

BOUNDS: dict[str, Any] = {"min": {"x": 0}, "max": {"x": 10}}
IN_PLACE: dict[str, Any] = {"ns": "db.c", "shard": "a", **BOUNDS}
MOVE: dict[str, Any] = {"ns": "db.c", "from": "a", "to": "b", **BOUNDS}


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
