"""Counts of requests to each shard, for the metrics: durations, errors and bytes.

Operations that passages have served are counted by `OperationMetrics.observe_on`, without a second observation;
all other requests are counted here.
"""

from collections.abc import Iterable
from time import perf_counter
from typing import Final

from shardwright.daemon.operation_metrics import Histogram, OperationMetrics, TargetStatistics
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import CommandError

UNREACHABLE: Final = "unreachable"
NOT_PRIMARY: Final = "not_primary"
STALE: Final = "stale"
OTHER: Final = "other"
KINDS: Final = (UNREACHABLE, NOT_PRIMARY, STALE, OTHER)
"""Kinds of errors: no answer, no longer primary, stale routing, and errors of commands."""

_STALE: Final = frozenset(
    {ErrorCode.StaleConfig, ErrorCode.StaleDbVersion, ErrorCode.StaleEpoch, ErrorCode.ShardInvalidatedForTargeting}
)


class ShardCounts:
    """Counts of one router by shard."""

    def __init__(self) -> None:
        self._statistics: dict[str, TargetStatistics] = {}
        self._errors: dict[str, dict[str, int]] = {}

    def note_reply(self, reply: ShardReply, request_bytes: int, started: float) -> None:
        """Count a request that a shard has answered.

        Args:
            reply: its answer.
            request_bytes: the length of the request.
            started: when it was sent, on the clock of `time.perf_counter`.
        """
        statistics = self._statistics.get(reply.shard_id)
        if statistics is None:
            statistics = self._statistics[reply.shard_id] = TargetStatistics()
        statistics.observe_request(perf_counter() - started, request_bytes, len(reply.frame))
        if reply.error is not None:
            self.note_error(reply.shard_id, _kind_of(reply.error))

    def note_error(self, shard_id: str, kind: str) -> None:
        """Count an error of one of the `KINDS`."""
        errors = self._errors.get(shard_id)
        if errors is None:
            errors = self._errors[shard_id] = dict.fromkeys(KINDS, 0)
        errors[kind] += 1

    def statistics(self, operations: OperationMetrics, shards: Iterable[str]) -> dict[str, TargetStatistics]:
        """Durations and bytes of all requests, for known shards from 0 on.

        Args:
            operations: counts the operations that passages have served.
            shards: the known shards.
        """
        every = {shard: TargetStatistics() for shard in shards}
        for part in (self._statistics, operations.on_targets()):
            for shard, statistics in part.items():
                every.setdefault(shard, TargetStatistics()).add(statistics)
        return every

    def errors(self, shards: Iterable[str]) -> dict[tuple[str, ...], float]:
        """Errors by shard and kind, for known shards from 0 on."""
        every = dict.fromkeys(shards, dict.fromkeys(KINDS, 0)) | self._errors
        return {(shard, kind): number for shard, errors in every.items() for kind, number in errors.items()}


def _kind_of(error: CommandError) -> str:
    if error.code in _STALE:
        return STALE
    return NOT_PRIMARY if has_category(error.code, Category.NOT_PRIMARY) else OTHER


def durations(statistics: dict[str, TargetStatistics]) -> dict[tuple[str, ...], Histogram]:
    """The histograms by shard, as `Metrics.histograms` wants them."""
    return {(shard,): each for shard, each in statistics.items()}


def transferred(statistics: dict[str, TargetStatistics]) -> dict[tuple[str, ...], float]:
    """The bytes by shard and direction, as `Metrics.observed_counters` wants them."""
    return {
        (shard, direction): number
        for shard, each in statistics.items()
        for direction, number in (("sent", each.bytes_sent), ("received", each.bytes_received))
    }
