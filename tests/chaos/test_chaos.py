"""A short sample of ``make chaos`` that changes daily."""

import datetime
from pathlib import Path
from typing import Final

import pytest

from tests.chaos.plan import Plan
from tests.chaos.run import run_chaos

SECONDS: Final = 80.0
"""Including start, shutdown and checks, this takes less than two minutes."""

TRANSACTIONS_SECONDS: Final = 20.0


def test_sample_of_the_day(tmp_path: Path) -> None:
    seed = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    plan = Plan.choose(seed, SECONDS, nemeses=("moves", "kills", "pauses"), members=1, round_seconds=SECONDS)
    summary = run_chaos(tmp_path / "chaos", plan)
    print(summary)
    assert summary.anomalies == [], str(summary)
    assert summary.moves > 1, str(summary)
    assert summary.operations.total() > 500, str(summary)


def test_transactions_beside_moves_and_kills(tmp_path: Path) -> None:
    seed = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    plan = Plan.choose(
        seed,
        TRANSACTIONS_SECONDS,
        workloads=("bank", "append_lists"),
        nemeses=("moves", "kills"),
        members=1,
        round_seconds=TRANSACTIONS_SECONDS,
    )
    summary = run_chaos(tmp_path / "chaos", plan)
    print(summary)
    assert summary.anomalies == [], str(summary)
    assert min(summary.operations.values()) > 20, str(summary)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "workloads",
    [("definitions", "indexes", "sets", "counters"), ("registers", "merges", "upserts", "multi_updates")],
    ids=lambda workloads: workloads[0],
)
def test_primaries_that_sleep_through_two_elections(tmp_path: Path, workloads: tuple[str, ...]) -> None:
    seed = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    plan = Plan.choose(
        seed, SECONDS, workloads=workloads, nemeses=("moves", "comebacks"), members=3, round_seconds=SECONDS
    )
    summary = run_chaos(tmp_path / "chaos", plan)
    print(summary)
    assert summary.anomalies == [], str(summary)
    assert summary.operations.total() > 100, str(summary)
