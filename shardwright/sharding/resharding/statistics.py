"""A process's totals for resharding operations since its start: ``serverStatus.shardingStatistics.resharding``.

A config daemon counts the operations that it has coordinated, a shard daemon those that it has taken part in. The names
are MongoDB 6.0's.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any, Final

from bson.int64 import Int64

_BOUNDS_MILLIS: Final = (10, 100, 1_000, 10_000)


class LatencyHistogram:
    """Counts of durations by order of magnitude."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_BOUNDS_MILLIS) + 1)

    def add(self, seconds: float) -> None:
        """Count a duration."""
        self._counts[bisect_right(_BOUNDS_MILLIS, seconds * 1000)] += 1

    def to_document(self) -> dict[str, Any]:
        """Build the counts by range of milliseconds."""
        low, *others = _BOUNDS_MILLIS
        pairs = zip(_BOUNDS_MILLIS, others, strict=False)
        names = [f"(-inf, {low})", *(f"[{start}, {end})" for start, end in pairs), f"[{_BOUNDS_MILLIS[-1]}, inf)"]
        ranges = {name: {"count": Int64(count)} for name, count in zip(names, self._counts, strict=True)}
        return {**ranges, "totalCount": Int64(sum(self._counts))}


@dataclass(slots=True)
class ReshardingStatistics:
    """Totals of a process.

    Attributes:
        started, succeeded, failed, canceled: operations; one in which a shard is donor and recipient is one.
        documents_copied, bytes_copied: cloned data.
        changes_fetched, changes_applied: concurrent changes, which are the newest versions of documents.
        stored, deleted: applied changes, by whether there is a newest version.
        held_writes: writes that had to wait for a critical section.
        chunk_imbalance: difference between recipients' numbers of chunks after the last operation.
        remaining_millis: the shortest and the longest remaining time of a recipient in the present operation.
        fetching: durations of fetching a batch of the clone.
        applying: durations of writing a batch of changes.
    """

    started: int = 0
    succeeded: int = 0
    failed: int = 0
    canceled: int = 0
    documents_copied: int = 0
    bytes_copied: int = 0
    changes_fetched: int = 0
    changes_applied: int = 0
    stored: int = 0
    deleted: int = 0
    held_writes: int = 0
    chunk_imbalance: int = 0
    remaining_millis: tuple[int, int] = (0, 0)
    fetching: LatencyHistogram = field(default_factory=LatencyHistogram)
    applying: LatencyHistogram = field(default_factory=LatencyHistogram)

    def end(self, *, is_success: bool, is_canceled: bool) -> None:
        """Count the end of an operation."""
        self.remaining_millis = (0, 0)
        if is_success:
            self.succeeded += 1
        elif is_canceled:
            self.canceled += 1
        else:
            self.failed += 1

    def to_section(self) -> dict[str, Any]:
        """Build the section ``shardingStatistics``, which lacks ``resharding`` until the first operation."""
        if not self.started:
            return {}
        shortest, longest = self.remaining_millis
        counts = {
            "countReshardingOperations": self.started,
            "countReshardingSuccessful": self.succeeded,
            "countReshardingFailures": self.failed,
            "countReshardingCanceled": self.canceled,
            "documentsCopied": self.documents_copied,
            "bytesCopied": self.bytes_copied,
            "oplogEntriesApplied": self.changes_applied,
            "countWritesDuringCriticalSection": self.held_writes,
            "oplogEntriesFetched": self.changes_fetched,
            "lastOpEndingChunkImbalance": self.chunk_imbalance,
        }
        remaining = {
            "minShardRemainingOperationTimeEstimatedMillis": shortest,
            "maxShardRemainingOperationTimeEstimatedMillis": longest,
        }
        # An operation's documents may already exist, so inserts cannot be told from updates.
        changes = {"insert": 0, "update": self.stored, "delete": self.deleted}
        return {
            "resharding": {
                **{name: Int64(value) for name, value in counts.items()},
                "opcounters": {name: Int64(value) for name, value in changes.items()},
                **{name: Int64(value) for name, value in remaining.items()},
                "oplogApplierApplyBatchLatencyMillis": self.applying.to_document(),
                "collClonerFillBatchForInsertLatencyMillis": self.fetching.to_document(),
            }
        }
