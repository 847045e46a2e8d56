"""A short sample of ``make chaos`` that changes daily."""

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.chaos.plan import Plan
from tests.chaos.run import run_chaos
from tests.chaos.summary import Summary

SECONDS: Final = 80.0
"""Including start, shutdown and checks, this takes less than two minutes."""

TRANSACTIONS_SECONDS: Final = 20.0
TRANSACTIONS_ROUNDS_MAX: Final = 10
"""One is enough, except on a machine that is very slow."""

READS: Final = {"transaction", "find", "aggregate"}
"""The kinds of snapshots in which the workload *bank* checks the total."""

PROCESSES: Final = {"router", "shard.shardd", "shard.mongod", "config.configd", "config.mongod"}


def test_sample_of_the_day(tmp_path: Path) -> None:
    seed = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    plan = Plan.choose(seed, SECONDS, nemeses=("moves", "kills", "pauses"), members=1, round_seconds=SECONDS)
    summary = run_chaos(tmp_path / "chaos", plan)
    print(summary)
    assert summary.anomalies == [], str(summary)
    assert summary.moves > 1, str(summary)
    assert summary.operations.total() > 500, str(summary)


def run_transactions(directory: Path, seconds: float, is_enough: Callable[[Summary], bool]) -> None:
    """Run rounds of transactions during moves and kills, until there are enough and nothing has gone wrong."""
    seed = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    plan = Plan.choose(
        seed,
        TRANSACTIONS_ROUNDS_MAX * seconds,
        workloads=("bank", "append_lists"),
        nemeses=("moves", "kills"),
        members=1,
        round_seconds=seconds,
    )
    summary = run_chaos(directory, plan, is_enough=is_enough)
    print(summary)
    assert summary.anomalies == [], str(summary)
    assert is_enough(summary), str(summary)


def has_moved_and_read(summary: Summary) -> bool:
    """Whether transactions and snapshot reads of each kind have taken place, and chunks have moved."""
    enough = min(summary.operations.values(), default=0) > 20
    return enough and summary.moves > 0 and summary.reads["bank"].keys() == READS


def test_transactions_beside_moves_and_kills(tmp_path: Path) -> None:
    run_transactions(
        tmp_path / "chaos", TRANSACTIONS_SECONDS, lambda summary: has_moved_and_read(summary) and bool(summary.killed)
    )


@pytest.mark.exhaustive
def test_transactions_beside_kills_of_every_kind_of_process(tmp_path: Path) -> None:
    run_transactions(
        tmp_path / "chaos", 2 * SECONDS, lambda summary: has_moved_and_read(summary) and summary.killed == PROCESSES
    )


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
