"""Metrics of operations: outcomes, durations, and histograms of durations."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, TypeAlias

import trio
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.samples import Exemplar

from shardwright.wire.error_codes import ErrorCode, code_name
from shardwright.wire.errors import BackendError, CommandError, RemoteProtocolError
from shardwright.wire.message import BODY_AT, MORE_TO_COME, OpMsg
from shardwright.wire.rawbson import decode_document
from shardwright.wire.request import Request
from shardwright.wire.transport.client_connection import ClientConnection

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
BUCKETS: Final = len(BUCKET_BOUNDS_SECONDS) + 1
"""Number of buckets: one for each bound, and the last one for durations above all of them."""

_BUCKET_LABELS: Final = (*(str(bound) for bound in BUCKET_BOUNDS_SECONDS), "+Inf")


class Histogram:
    """Durations by bucket.

    Attributes:
        buckets: for each bound of `BUCKET_BOUNDS_SECONDS`, the number of durations up to it and above the previous
            bound; the last one counts the durations above all bounds.
    """

    __slots__ = ("buckets", "seconds")

    def __init__(self) -> None:
        self.buckets = [0] * BUCKETS
        self.seconds = 0.0

    def observe(self, seconds: float) -> None:
        """Count a duration."""
        self.buckets[bisect_left(BUCKET_BOUNDS_SECONDS, seconds)] += 1
        self.seconds += seconds

    def add_durations(self, other: "Histogram") -> None:
        """Add the durations of another histogram."""
        self.buckets = [ours + theirs for ours, theirs in zip(self.buckets, other.buckets, strict=True)]
        self.seconds += other.seconds


Exemplars: TypeAlias = dict[str, dict[int, Exemplar]]
"""Traced operations by a label of their histogram, and by the bucket of their duration."""


def note_exemplar(exemplars: Exemplars, label: str, exemplar: Exemplar) -> None:
    """Show a traced operation with the bucket of its duration, until a later one replaces it."""
    exemplars.setdefault(label, {})[bisect_left(BUCKET_BOUNDS_SECONDS, exemplar.value)] = exemplar


CumulativeBucket: TypeAlias = tuple[str, float] | tuple[str, float, Exemplar]
"""Bound of a bucket, number of all durations up to it, and an exemplar if there is one."""


def cumulative(buckets: Sequence[int], exemplars: Mapping[int, Exemplar] | None = None) -> list[CumulativeBucket]:
    """Convert buckets to Prometheus's form; ``exemplars`` are by the index of their bucket."""
    result: list[CumulativeBucket] = list(zip(_BUCKET_LABELS, accumulate(buckets), strict=True))
    for at, exemplar in (exemplars or {}).items():
        bound, total, *_ = result[at]
        result[at] = bound, total, exemplar
    return result


OK: Final = "ok"
CLIENT_DISCONNECT: Final = code_name(ErrorCode.ClientDisconnect)
HOST_UNREACHABLE: Final = code_name(ErrorCode.HostUnreachable)
INTERNAL_ERROR: Final = code_name(ErrorCode.InternalError)
INTERRUPTED_AT_SHUTDOWN: Final = code_name(ErrorCode.InterruptedAtShutdown)
PROTOCOL_ERROR: Final = code_name(ErrorCode.ProtocolError)

FAULTS: Final = (
    CLIENT_DISCONNECT,
    HOST_UNREACHABLE,
    code_name(ErrorCode.FailedToSatisfyReadPreference),
    INTERRUPTED_AT_SHUTDOWN,
    PROTOCOL_ERROR,
    INTERNAL_ERROR,
)
"""Outcomes that no argument of a client causes. An alert watches them over all commands."""


def outcome_of_failure(failure: BaseException, client: ClientConnection) -> str:
    """Return the outcome of an operation whose handler raised an exception."""
    if isinstance(failure, BaseExceptionGroup):
        # The first failure in a nursery has cancelled everything else.
        first, _ = failure.split(lambda each: not isinstance(each, trio.Cancelled | BaseExceptionGroup))
        return outcome_of_failure(_first_leaf(first or failure), client)
    if isinstance(failure, CommandError):
        return failure.code_name
    if isinstance(failure, BackendError):
        return HOST_UNREACHABLE
    if isinstance(failure, trio.Cancelled):
        if client.interruption is not None:
            return client.interruption.code_name
        return CLIENT_DISCONNECT if client.is_disconnected else INTERRUPTED_AT_SHUTDOWN
    if isinstance(failure, RemoteProtocolError):
        return PROTOCOL_ERROR
    if isinstance(failure, OSError):
        return CLIENT_DISCONNECT  # errors of other connections are BackendErrors
    return INTERNAL_ERROR


def outcome_of_success(client: ClientConnection, request: Request) -> str:
    """Return the outcome of a successful operation: ``ok``, or ClientDisconnect if the client left before the reply."""
    if client.is_disconnected and not request.message.flags & MORE_TO_COME:
        return CLIENT_DISCONNECT
    return OK


def outcome_of_reply(reply: bytes | None) -> tuple[str, int]:
    """Return the outcome of a reply, and its error code; ``ok`` without a reply, because it was relayed.

    A write with failed statements has the outcome of the first of them.
    """
    if reply is None or not (
        reply.startswith(_FAILED, _ELEMENTS_AT) or (reply.startswith(WRITTEN, _ELEMENTS_AT) and WRITE_ERRORS in reply)
    ):
        return OK, 0
    document = decode_document(OpMsg(reply).body)
    if document.get("ok"):
        errors = document.get("writeErrors")
        if not errors:
            return OK, 0
        document = errors[0]
    code = document.get("code", 0)
    if not isinstance(code, int):
        code = 0
    return str(document.get("codeName", code_name(code) if code else UNKNOWN_OUTCOME)), code


def reports_write_errors(reply: bytes | None) -> bool:
    """Whether a reply whose outcome is not ``ok`` reports errors of statements, not an error of the command."""
    return reply is not None and reply.startswith(WRITTEN, _ELEMENTS_AT)


def _first_leaf(failure: BaseException) -> BaseException:
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure


_FAILED: Final = b"\x01ok\0" + bytes(8)
"""First element in the reply to a failed command, as mongods and daemons write it."""

_ELEMENTS_AT: Final = BODY_AT + 4

WRITTEN: Final = b"\x10n"
"""Beginning of the reply to a write as mongods and routers write it: with ``n`` or ``nModified``."""

WRITE_ERRORS: Final = b"\x04writeErrors\0"
"""Type and name of the element with the errors of statements. A document in a reply may contain these bytes too."""

UNKNOWN_COMMAND: Final = "unknown"
UNKNOWN_OUTCOME: Final = "unknown"
OTHER_OUTCOME: Final = "other"

OUTCOMES_MAX: Final = 50
"""The maximum number of outcomes counted separately for one command, so that error codes cannot bloat the metrics."""


@dataclass(frozen=True, slots=True)
class CommandStatistics:
    """The numbers for one command.

    Attributes:
        buckets: number of operations by duration, as `Histogram.buckets`.
        with_write_errors: number of writes that ended with ``ok: 1`` and errors of statements.
    """

    outcomes: dict[str, int]
    seconds: float
    buckets: tuple[int, ...]
    with_write_errors: int

    @property
    def count(self) -> int:
        """The number of operations of the command."""
        return sum(self.buckets)

    @property
    def failures(self) -> int:
        """The number of operations with ``ok: 0``. MongoDB counts only these as failed."""
        return self.count - self.outcomes[OK] - self.with_write_errors


class TargetStatistics(Histogram):
    """Requests to one server or shard: their durations, and the bytes of requests and replies."""

    __slots__ = ("bytes_received", "bytes_sent")

    def __init__(self) -> None:
        super().__init__()
        self.bytes_sent = self.bytes_received = 0

    def observe_request(self, seconds: float, bytes_sent: int, bytes_received: int) -> None:
        """Count a request and its reply."""
        self.observe(seconds)
        self.bytes_sent += bytes_sent
        self.bytes_received += bytes_received

    def add(self, other: "TargetStatistics") -> None:
        """Add the counts of another server or shard."""
        self.add_durations(other)
        self.bytes_sent += other.bytes_sent
        self.bytes_received += other.bytes_received


class _Series(Histogram):
    """The numbers for one command, while they are counted or added up."""

    __slots__ = ("outcomes", "with_write_errors")

    def __init__(self) -> None:
        super().__init__()
        self.outcomes = {OK: 0}
        self.with_write_errors = 0

    def add(self, durations: Histogram, outcomes: Mapping[str, int], with_write_errors: int = 0) -> None:
        self.add_durations(durations)
        for outcome, count in outcomes.items():
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + count
        self.with_write_errors += with_write_errors

    def frozen(self) -> CommandStatistics:
        return CommandStatistics(self.outcomes, self.seconds, tuple(self.buckets), self.with_write_errors)


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
        self._on_targets: dict[str, dict[str, TargetStatistics]] = {}
        self._exemplars: Exemplars = {}

    def observe(self, command: str, outcome: str, seconds: float, *, has_write_errors: bool = False) -> None:
        """Count one operation.

        Args:
            outcome: `OK` or the name of an error.
            has_write_errors: whether the outcome is a statement's error in a write that ended with ``ok: 1``.
        """
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
        if has_write_errors:
            series.with_write_errors += 1

    def observe_on(self, target: str, command: str, seconds: float, bytes_sent: int, bytes_received: int) -> int:
        """Count one successful operation by its command and by the server or shard that has served it.

        This takes as long as `observe`. Return the number of the bucket of the duration, for other histograms.

        Args:
            bytes_sent: the length of the request to the target.
            bytes_received: the length of the target's reply.
        """
        try:
            statistics = self._on_targets[target][command]
        except KeyError:
            statistics = self._statistics_on(target, command)
        bucket = bisect_left(BUCKET_BOUNDS_SECONDS, seconds)
        statistics.buckets[bucket] += 1
        statistics.seconds += seconds
        statistics.bytes_sent += bytes_sent
        statistics.bytes_received += bytes_received
        return bucket

    def note_exemplar(self, command: str, exemplar: Exemplar) -> None:
        """Show a traced operation in the histogram of its command."""
        note_exemplar(self._exemplars, self._label_of(command), exemplar)

    def statistics(self) -> dict[str, CommandStatistics]:
        """Return the numbers so far by command."""
        every: dict[str, _Series] = {}
        for command, series in self._series.items():
            every.setdefault(command, _Series()).add(series, series.outcomes, series.with_write_errors)
        for by_command in self._on_targets.values():
            for command, statistics in by_command.items():
                every.setdefault(command, _Series()).add(statistics, {OK: sum(statistics.buckets)})
        return {command: totals.frozen() for command, totals in every.items()}

    def on_targets(self) -> dict[str, TargetStatistics]:
        """Return the operations that were counted by target (`observe_on`)."""
        totals: dict[str, TargetStatistics] = {}
        for target, by_command in self._on_targets.items():
            totals[target] = TargetStatistics()
            for statistics in by_command.values():
                totals[target].add(statistics)
        return totals

    def faults(self) -> dict[str, int]:
        """Return the operations of all commands, counted by the outcomes in `FAULTS`."""
        return {fault: sum(each.outcomes.get(fault, 0) for each in self._series.values()) for fault in FAULTS}

    def collect(self) -> Iterator[Metric]:
        """Yield the numbers as Prometheus metrics."""
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
            buckets = cumulative(statistics.buckets, self._exemplars.get(command))
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
        return self._series.setdefault(self._label_of(command), _Series())

    def _statistics_on(self, target: str, command: str) -> TargetStatistics:
        by_command = self._on_targets.setdefault(target, {})
        return by_command.setdefault(self._label_of(command), TargetStatistics())

    def _label_of(self, command: str) -> str:
        return command if command in self._commands else UNKNOWN_COMMAND


def _count_new_outcome(outcomes: dict[str, int], outcome: str) -> None:
    label = outcome if len(outcomes) < OUTCOMES_MAX or outcome in FAULTS else OTHER_OUTCOME
    outcomes[label] = outcomes.get(label, 0) + 1
