"""Numbers, outcomes and durations of operations, by command.

They are plain numbers in lists: `OperationMetrics.observe` is called for every operation and has to cost well under a
microsecond. Prometheus's metric objects are created only when metrics are read.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from shardwright.daemon.outcomes import FAULTS, OK

UNKNOWN_COMMAND: Final = "unknown"
OTHER_OUTCOME: Final = "other"

OUTCOMES_MAX: Final = 50
"""The maximum number of outcomes counted separately for one command, so that error codes cannot bloat the metrics."""

BUCKET_BOUNDS_SECONDS: Final = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
)
_BUCKET_LABELS: Final = (*(str(bound) for bound in BUCKET_BOUNDS_SECONDS), "+Inf")


@dataclass(frozen=True, slots=True)
class CommandStatistics:
    """The numbers for one command.

    Attributes:
        outcomes: how many operations had each outcome.
        seconds: the sum of their durations.
        buckets: for each bound of `BUCKET_BOUNDS_SECONDS`, how many took at most that long but longer than the bound
            before it; the last one counts those above all bounds.
    """

    outcomes: dict[str, int]
    seconds: float
    buckets: tuple[int, ...]

    @property
    def count(self) -> int:
        """The number of operations of the command."""
        return sum(self.buckets)


class _Series:
    __slots__ = ("buckets", "outcomes", "seconds")

    def __init__(self) -> None:
        self.buckets = [0] * len(_BUCKET_LABELS)
        self.outcomes = {OK: 0}
        self.seconds = 0.0


class OperationMetrics:
    """Counters and latency histograms by command.

    Args:
        prefix: the prefix of the metric names, for example ``shardwright_router``.
        commands: the commands that are counted by name; any other is counted as ``unknown``.
    """

    def __init__(self, prefix: str, commands: Iterable[str]) -> None:
        self._prefix = prefix
        self._commands = frozenset(commands)
        self._series: dict[str, _Series] = {}

    def observe(self, command: str, outcome: str, seconds: float) -> None:
        """Count one operation: ``outcome`` is one of `daemon.outcomes`."""
        series = self._series.get(command)
        if series is None:
            series = self._series_of(command)
        series.buckets[bisect_left(BUCKET_BOUNDS_SECONDS, seconds)] += 1
        series.seconds += seconds
        outcomes = series.outcomes
        if outcome in outcomes:
            outcomes[outcome] += 1
        else:
            _count_new_outcome(outcomes, outcome)

    def statistics(self) -> dict[str, CommandStatistics]:
        """The numbers so far by command."""
        return {
            command: CommandStatistics(dict(series.outcomes), series.seconds, tuple(series.buckets))
            for command, series in self._series.items()
        }

    def faults(self) -> dict[str, int]:
        """Operations of all commands, counted by the outcomes in `FAULTS`."""
        return {fault: sum(each.outcomes.get(fault, 0) for each in self._series.values()) for fault in FAULTS}

    def collect(self) -> Iterator[Metric]:
        """The numbers as Prometheus metrics."""
        operations = CounterMetricFamily(
            f"{self._prefix}_operations", "Operations ended, by command and outcome", labels=("command", "outcome")
        )
        durations = HistogramMetricFamily(
            f"{self._prefix}_operation_duration_seconds",
            "Time from the request of an operation to its reply, by command",
            labels=("command",),
        )
        for command, statistics in self.statistics().items():
            for outcome, count in statistics.outcomes.items():
                operations.add_metric((command, outcome), count)
            buckets = list(zip(_BUCKET_LABELS, accumulate(statistics.buckets), strict=True))
            durations.add_metric((command,), buckets=buckets, sum_value=statistics.seconds)
        faults = CounterMetricFamily(
            f"{self._prefix}_operation_faults", "Operations that failed by no fault of the client", labels=("outcome",)
        )
        for outcome, count in self.faults().items():
            faults.add_metric((outcome,), count)
        yield operations
        yield faults
        yield durations

    def _series_of(self, command: str) -> _Series:
        label = command if command in self._commands else UNKNOWN_COMMAND
        return self._series.setdefault(label, _Series())


def _count_new_outcome(outcomes: dict[str, int], outcome: str) -> None:
    label = outcome if len(outcomes) < OUTCOMES_MAX or outcome in FAULTS else OTHER_OUTCOME
    outcomes[label] = outcomes.get(label, 0) + 1
