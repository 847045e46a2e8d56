"""How long the steps of a two-phase commit take."""

from collections.abc import Callable
from datetime import UTC, datetime
from time import monotonic

from shardwright.shardd.two_phase_commit.commit_state import Step


class CommitTimes:
    """When a commit entered each of its steps.

    Args:
        clock: returns seconds.

    Attributes:
        began: the wall clock time at which this process began with the commit.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.began = self.now()
        self._clock = clock
        self._began = clock()
        self._entered: dict[Step, float] = {}

    @staticmethod
    def now() -> datetime:
        """The wall clock time."""
        return datetime.now(UTC).replace(tzinfo=None)

    def enter(self, step: Step) -> None:
        """Record that a step begins, and the one before it ends."""
        self._entered[step] = self._clock()

    @property
    def total_seconds(self) -> float:
        """How long the commit has taken so far."""
        return self._clock() - self._began

    def durations(self) -> dict[str, int]:
        """Microseconds in each step that was entered, and in all of them, as ``currentOp`` names them."""
        steps, times = list(self._entered), [*self._entered.values(), self._clock()]
        micros = {
            f"{step.value}Micros": _micros(end - start)
            for step, start, end in zip(steps, times[:-1], times[1:], strict=True)
            if step is not Step.ENDED
        }
        return {**micros, "totalCommitDurationMicros": _micros(self.total_seconds)}


def _micros(seconds: float) -> int:
    return round(seconds * 1_000_000)
