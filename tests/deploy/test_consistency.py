"""The output of ``shardwright check``, and its exit status."""

from pathlib import Path
from typing import Any

import pytest

from shardwright.deploy.cli import EXIT_INCONSISTENT, main
from shardwright.deploy.cluster import LocalCluster

GAP = {
    "type": "RoutingTableRangeGap",
    "description": "Found a gap between two consecutive chunks",
    "details": {"namespace": "shop.orders", "chunkA": {"max": {"x": 1}}, "chunkB": {"min": {"x": 2}}},
}
STRAY = {
    "type": "StrayDatabase",
    "description": "Found a database on a shard that is not in the catalog",
    "details": {"namespace": "old", "shard": "shard1"},
}


@pytest.mark.parametrize(
    ("found", "status", "printed"),
    [
        ([], 0, ["no inconsistencies"]),
        (
            [STRAY],
            EXIT_INCONSISTENT,
            [
                "1 inconsistency",
                '  old: StrayDatabase: Found a database on a shard that is not in the catalog {"shard": "shard1"}',
            ],
        ),
        (
            [GAP, STRAY],
            EXIT_INCONSISTENT,
            [
                "2 inconsistencies",
                "  shop.orders: RoutingTableRangeGap: Found a gap between two consecutive chunks "
                '{"chunkA": {"max": {"x": 1}}, "chunkB": {"min": {"x": 2}}}',
                '  old: StrayDatabase: Found a database on a shard that is not in the catalog {"shard": "shard1"}',
            ],
        ),
    ],
)
def test_a_line_for_each_inconsistency(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    found: list[dict[str, Any]],
    status: int,
    printed: list[str],
) -> None:
    monkeypatch.setattr(LocalCluster, "check", lambda *_, **__: found)
    assert main(["check", "--dir", str(tmp_path)]) == status
    assert capsys.readouterr().out.splitlines() == printed
