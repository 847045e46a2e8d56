"""Durations, errors and bytes of requests to each shard, for the metrics.

`OperationMetrics.observe_on` counts the operations that passages served, which saves a second observation. All other
requests are counted here.
"""

from collections.abc import Iterable
from time import perf_counter
from typing import Final

from prometheus_client.samples import Exemplar

from shardwright.daemon.operation_metrics import (
    Exemplars,
    Histogram,
    OperationMetrics,
    TargetStatistics,
    note_exemplar,
)
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
    """Counts of one router by shard.

    Attributes:
        exemplars: requests of traced operations, by shard.
    """

    def __init__(self) -> None:
        self._statistics: dict[str, TargetStatistics] = {}
        self._errors: dict[str, dict[str, int]] = {}
        self.exemplars: Exemplars = {}

    def note_reply(self, reply: ShardReply, request_bytes: int, started: float) -> None:
        """Count a request that a shard has answered; it was sent at ``started`` by `time.perf_counter`."""
        reply.seconds = perf_counter() - started
        self.note_success(reply.shard_id, reply.seconds, request_bytes, len(reply.frame))
        if reply.error is not None:
            self.note_error(reply.shard_id, _kind_of(reply.error))

    def note_success(self, shard_id: str, seconds: float, request_bytes: int, reply_bytes: int) -> None:
        """Count a request that a shard has answered without an error."""
        statistics = self._statistics.get(shard_id)
        if statistics is None:
            statistics = self._statistics[shard_id] = TargetStatistics()
        statistics.observe_request(seconds, request_bytes, reply_bytes)

    def note_exemplar(self, shard_id: str, exemplar: Exemplar) -> None:
        """Show a request of a traced operation, which `note_reply` has counted."""
        note_exemplar(self.exemplars, shard_id, exemplar)

    def note_error(self, shard_id: str, kind: str) -> None:
        """Count an error of one of the `KINDS`."""
        errors = self._errors.get(shard_id)
        if errors is None:
            errors = self._errors[shard_id] = dict.fromkeys(KINDS, 0)
        errors[kind] += 1

    def statistics(self, operations: OperationMetrics, shards: Iterable[str]) -> dict[str, TargetStatistics]:
        """Return durations and bytes of all requests, starting at 0 for known shards.

        ``operations`` has the counts of operations that passages have served.
        """
        every = {shard: TargetStatistics() for shard in shards}
        for part in (self._statistics, operations.on_targets()):
            for shard, statistics in part.items():
                every.setdefault(shard, TargetStatistics()).add(statistics)
        return every

    def errors(self, shards: Iterable[str]) -> dict[tuple[str, ...], float]:
        """Return errors by shard and kind, starting at 0 for known shards."""
        every = dict.fromkeys(shards, dict.fromkeys(KINDS, 0)) | self._errors
        return {(shard, kind): number for shard, errors in every.items() for kind, number in errors.items()}


def _kind_of(error: CommandError) -> str:
    if error.code in _STALE:
        return STALE
    return NOT_PRIMARY if has_category(error.code, Category.NOT_PRIMARY) else OTHER


def durations(statistics: dict[str, TargetStatistics]) -> dict[tuple[str, ...], Histogram]:
    """Return the histograms by shard for `Metrics.histograms`."""
    return {(shard,): each for shard, each in statistics.items()}


def transferred(statistics: dict[str, TargetStatistics]) -> dict[tuple[str, ...], float]:
    """Return the bytes by shard and direction for `Metrics.observed_counters`."""
    return {
        (shard, direction): number
        for shard, each in statistics.items()
        for direction, number in (("sent", each.bytes_sent), ("received", each.bytes_received))
    }
