"""Counters of two-phase commits, as ``serverStatus`` and the metrics show them."""

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from bson.int64 import Int64

from shardwright.daemon.metrics import Metrics
from shardwright.shardd.two_phase_commit.commit_state import Step
from shardwright.shardd.two_phase_commit.decision import Decision, name_of
from shardwright.shardd.two_phase_commit.transaction_coordinator import TransactionCoordinator

_STEPS: Final = tuple(step for step in Step if step is not Step.ENDED)


class CommitStatistics:
    """Counters since the start of the daemon.

    Args:
        metrics: the daemon's metrics.
        running: the commits under way.
    """

    def __init__(self, metrics: Metrics, running: Iterable[TransactionCoordinator]) -> None:
        self.created = 0
        self.started = 0
        self._ended: Counter[str | None] = Counter()
        self._running = running
        self._outcomes = metrics.labelled_counter(
            "two_phase_commits", "Two-phase commits that have ended", "outcome", ("commit", "abort", "None")
        )
        metrics.gauge("two_phase_commits_active", "Two-phase commits under way", lambda: sum(self._in_steps().values()))

    def count_end(self, decision: Decision | None) -> None:
        """Count a commit that has ended."""
        name = name_of(decision)
        self._ended[name] += 1
        self._outcomes.add(f"{name}")

    def server_status(self) -> dict[str, Any]:
        """The section ``twoPhaseCommitCoordinator`` of ``serverStatus``."""
        steps = self._in_steps()
        return {
            "totalCreated": Int64(self.created),
            "totalStartedTwoPhaseCommit": Int64(self.started),
            "totalAbortedTwoPhaseCommit": Int64(self._ended["abort"]),
            "totalCommittedTwoPhaseCommit": Int64(self._ended["commit"]),
            "currentInSteps": {step.value: Int64(steps[step]) for step in _STEPS},
        }

    def _in_steps(self) -> Counter[Step]:
        return Counter(each.state.step for each in self._running)
