"""One run: a cluster, its rounds, and the files kept afterwards."""

import shutil
from collections.abc import Callable
from pathlib import Path

from tests.chaos.cluster import shaped_cluster
from tests.chaos.history import History
from tests.chaos.plan import Plan
from tests.chaos.round import Round
from tests.chaos.summary import Summary


def run_chaos(
    directory: Path,
    plan: Plan,
    report: Callable[[str], None] = print,
    is_enough: Callable[[Summary], bool] = lambda _: False,
) -> Summary:
    """Run on a new cluster in ``directory``, which is removed unless there were anomalies.

    Args:
        directory: must not exist yet.
        plan: the plan of the run.
        report: called with the name of each round when it starts.
        is_enough: called after each round; no other follows, though there is time left, if it returns True.
    """
    directory.mkdir(parents=True, exist_ok=True)
    history = History(directory / "history.jsonl")
    summary = Summary(plan.seed, plan.shape)
    try:
        with shaped_cluster(directory / "cluster", plan.shape) as (cluster, links):
            while summary.seconds < plan.seconds and not (history.anomalies or is_enough(summary)):
                current = Round(cluster, links, plan, summary.rounds, history)
                report(current.name)
                try:
                    current.run(min(plan.round_seconds, plan.seconds - summary.seconds), summary)
                except AssertionError as anomaly:
                    history.anomaly(f"{current.name}: {anomaly}")
                if history.anomalies:
                    for name, lines in current.recorded().items():
                        (directory / f"operations-{name}.jsonl").write_text(lines)
    finally:
        history.close()
        summary.anomalies = history.anomalies
    if summary.anomalies:
        summary.kept = directory
    else:
        shutil.rmtree(directory)
    return summary
