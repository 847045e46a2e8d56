"""How many operations there were, how they ended and how long they took, by command.

Plain integers in lists: `OperationMetrics.observe` is called once for every operation and has to cost well under a
microsecond. Prometheus's own metric objects come in only when someone reads.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from shardwright.daemon.outcomes import OK

UNKNOWN_COMMAND: Final = "unknown"
OTHER_OUTCOME: Final = "other"

OUTCOMES_MAX: Final = 50
"""Different outcomes of one command that are counted apart, so that error codes cannot grow the metrics for ever."""

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
    """One command so far.

    Attributes:
        outcomes: how many operations ended in which way.
        seconds: their durations added up.
        buckets: how many took at most each bound of `BUCKET_BOUNDS_SECONDS` but more than the one before; the last
            counts those above all bounds.
    """

    outcomes: dict[str, int]
    seconds: float
    buckets: tuple[int, ...]

    @property
    def count(self) -> int:
        """All operations of the command."""
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
        prefix: what the metric names begin with, for example ``shardwright_router``.
        commands: the commands that have a label of their own; every other name is counted as ``unknown``.
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

    def collect(self) -> Iterator[Metric]:
        """The numbers as Prometheus's metrics."""
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
        yield operations
        yield durations

    def _series_of(self, command: str) -> _Series:
        label = command if command in self._commands else UNKNOWN_COMMAND
        return self._series.setdefault(label, _Series())


def _count_new_outcome(outcomes: dict[str, int], outcome: str) -> None:
    label = outcome if len(outcomes) < OUTCOMES_MAX else OTHER_OUTCOME
    outcomes[label] = outcomes.get(label, 0) + 1
