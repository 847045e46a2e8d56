"""Key statistics: reads and writes of ranges of shard keys per minute. Values and their documents.

Each shard daemon estimates them by samples. It writes one document for each minute with operations into
``config.keyStatistics``, and one for ten minutes into ``config.keyStatisticsHistory``. Both collections are capped, and
additions of ours.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Self

from shardwright.wire.rawbson import raw_document

MINUTES: Final = "keyStatistics"
HISTORY: Final = "keyStatisticsHistory"

MINUTE_SECONDS: Final = 60
HISTORY_SECONDS: Final = 600

RANGES_MAX: Final = 64
"""Most ranges in one document, over all collections."""

MINUTES_BYTES_MAX: Final = 64 << 20
HISTORY_BYTES_MAX: Final = 128 << 20
"""Sizes of the capped collections.

A full document has about 5 kB: a day of minutes of ten busy shards, and two weeks of twelve.
"""


@dataclass(frozen=True, slots=True)
class Counts:
    """Estimated numbers of operations, and of documents and bytes returned by reads or written."""

    reads: int = 0
    writes: int = 0
    documents: int = 0
    bytes: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.reads + other.reads,
            self.writes + other.writes,
            self.documents + other.documents,
            self.bytes + other.bytes,
        )

    @property
    def operations(self) -> int:
        """Sum of reads and writes."""
        return self.reads + self.writes


@dataclass(frozen=True, slots=True)
class KeyRange:
    """A range of one collection with its numbers; the bounds are raw and, as ``min_key`` and ``max_key``, encoded."""

    namespace: str
    min: bytes
    max: bytes
    min_key: bytes
    max_key: bytes
    counts: Counts

    def joined(self, later: "KeyRange") -> "KeyRange":
        """Join this range with a later one: from the start of this to the end of the other, with the sum of both."""
        return KeyRange(self.namespace, self.min, later.max, self.min_key, later.max_key, self.counts + later.counts)

    def with_counts(self, counts: Counts) -> Self:
        """Return the same range with other numbers."""
        return type(self)(self.namespace, self.min, self.max, self.min_key, self.max_key, counts)


def compressed(ranges: Iterable[KeyRange], most: int = RANGES_MAX) -> list[KeyRange]:
    """Reduce ranges to at most ``most``, in order, with the same sums, by joining neighbours with few operations.

    Ranges of different collections are not joined, so there may be more ranges if there are very many collections.
    """
    found = sorted(ranges, key=lambda each: (each.namespace, each.min_key))
    while len(found) > most:
        pairs = sorted(
            left.counts.operations + right.counts.operations
            for left, right in pairwise(found)
            if left.namespace == right.namespace
        )
        if not pairs:
            return found
        limit = pairs[min(len(pairs), len(found) - most) - 1]
        found = _joined_up_to(found, limit, len(found) - most)
    return found


def _joined_up_to(ranges: Sequence[KeyRange], limit: int, most: int) -> list[KeyRange]:
    """Join at most ``most`` pairs of neighbours whose operations together do not exceed ``limit``."""
    found: list[KeyRange] = []
    joined = 0
    was_joined = False
    for each in ranges:
        last = found[-1] if found else None
        if (
            last is not None
            and not was_joined
            and joined < most
            and last.namespace == each.namespace
            and last.counts.operations + each.counts.operations <= limit
        ):
            found[-1] = last.joined(each)
            joined, was_joined = joined + 1, True
        else:
            found.append(each)
            was_joined = False
    return found


def added(minutes: Sequence[Sequence[KeyRange]], most: int = RANGES_MAX) -> list[KeyRange]:
    """Add up several minutes, in the ranges of the minute with most ranges; each other range counts where it begins."""
    by_namespace: dict[str, list[KeyRange]] = {}
    for minute in sorted(minutes, key=len, reverse=True):
        for namespace in {each.namespace for each in minute} - by_namespace.keys():
            by_namespace[namespace] = [each.with_counts(Counts()) for each in minute if each.namespace == namespace]
    for cells in by_namespace.values():
        cells.sort(key=lambda each: each.min_key)
    lows = {namespace: [cell.min_key for cell in cells] for namespace, cells in by_namespace.items()}
    for minute in minutes:
        for each in minute:
            cells = by_namespace[each.namespace]
            at = max(bisect_right(lows[each.namespace], each.min_key) - 1, 0)
            cells[at] = cells[at].with_counts(cells[at].counts + each.counts)
    return compressed((cell for cells in by_namespace.values() for cell in cells), most)


def collections_of(ranges: Iterable[KeyRange]) -> list[dict[str, Any]]:
    """Build the field ``collections``: ``[{ns, ranges: [{min, max, reads, writes, documents, bytes}]}]``."""
    found: dict[str, list[dict[str, Any]]] = {}
    for each in ranges:
        found.setdefault(each.namespace, []).append(
            {
                "min": raw_document(each.min),
                "max": raw_document(each.max),
                "reads": each.counts.reads,
                "writes": each.counts.writes,
                "documents": each.counts.documents,
                "bytes": each.counts.bytes,
            }
        )
    return [{"ns": namespace, "ranges": each} for namespace, each in found.items()]
