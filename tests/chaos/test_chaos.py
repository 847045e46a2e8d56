"""The short form of ``make chaos``."""

import secrets
from pathlib import Path

from tests.chaos.run import run_chaos

SECONDS = 110.0
"""With start, end and checks two minutes."""


def test_two_minutes(tmp_path: Path) -> None:
    summary = run_chaos(tmp_path / "chaos", seconds=SECONDS, seed=secrets.token_hex(4))
    print(summary)
    assert summary.anomalies == [], str(summary)
    assert summary.moves > 10, str(summary)
    assert summary.kills.total() > 5, str(summary)
    assert summary.operations > 1000, str(summary)
