"""Key statistics: samples of the shard keys of operations, written to the config servers each minute.

**Sampling** (`KeyCounter`). One operation in `GAP` on average is chosen at random and weighted by the gap. It counts
for the chunk of its shard key. A read of many chunks counts for one of them, chosen at random, so that each gets its
share on average.

**Storage** (`KeyStatistics`). A shard daemon writes its own documents, through its client of the config servers. If
config daemons polled all shards each minute, that would need a command of its own and lose the minutes of unreachable
shards. Lost documents are not written again, because the counts are estimates.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import Any, Final

import trio

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.sharding.key_statistics import (
    HISTORY,
    HISTORY_SECONDS,
    MINUTE_SECONDS,
    MINUTES,
    Counts,
    KeyRange,
    added,
    collections_of,
    compressed,
)
from shardwright.sharding.routing_table import RoutedChunk, RoutingTable
from shardwright.sharding.targeting.filters import EVERYTHING, KeyRanges, key_ranges
from shardwright.sharding.time_series import IS_TIME_SERIES_NAMESPACE
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.message import BODY_AT
from shardwright.wire.rawbson import ARRAY, INT32, OBJECT, InvalidBSONError, Span, decode_value, find, index, spans
from shardwright.wire.request import Request

logger = get_logger("shardd.key_statistics")

GAP: Final = 100
"""Mean distance of two samples. A sample takes up to 40 µs; a hundred point reads take 3 ms."""

_SAMPLES_MAX: Final = 6_000
"""Samples in a minute above which the gap doubles."""

_TRIES: Final = 4
_COUNTED_MAX: Final = 16
"""Documents of a reply that are counted; the number in longer replies is estimated from their size."""

_FILTERS: Final = {
    "find": b"filter",
    "count": b"query",
    "distinct": b"query",
    "findAndModify": b"query",
    "findandmodify": b"query",
}
_STATEMENTS: Final = {"update": b"updates", "delete": b"deletes"}
_WRITES: Final = frozenset({"insert", "update", "delete", "findAndModify", "findandmodify"})

_MINUTES_OF_HISTORY: Final = HISTORY_SECONDS // MINUTE_SECONDS


class KeyCounter:
    """The counts of the current minute.

    Attributes:
        remaining: operations until the next sample. Callers subtract one for each, and call `sample` at zero.
        is_enabled: whether anything is counted.
    """

    def __init__(self, random: Random) -> None:
        self.is_enabled = True
        self._random = random
        self._gap = GAP
        self._samples = 0
        self._chunks: dict[tuple[str, bytes], tuple[RoutedChunk, Counts]] = {}
        self.remaining = self._next_gap()

    def sample(self, request: Request, reply: bytes | None, shard: str, table: RoutingTable) -> None:
        """Count an operation for all since the last sample.

        Args:
            reply: the frame of the reply; None if it was relayed.
            table: the collection's routing table when the operation was admitted.
        """
        weight, self.remaining = self._gap, self._next_gap()
        if not self.is_enabled:
            return
        try:
            chunk = self._chunk(request, shard, table)
        except (CommandError, InvalidBSONError):
            return  # mongod has reported what is wrong with it
        if chunk is None:
            return
        is_write = request.name in _WRITES
        size = len(request.message.frame) if is_write else len(reply or b"")
        documents = 0 if reply is None else documents_in(reply)
        counts = Counts(0 if is_write else weight, weight if is_write else 0, documents * weight, size * weight)
        key = str(table.namespace), chunk.min_key
        known = self._chunks.get(key)
        self._chunks[key] = chunk, counts if known is None else known[1] + counts
        self._samples += 1
        if self._samples > _SAMPLES_MAX:
            self._gap, self._samples = self._gap * 2, self._samples // 2

    def take(self) -> list[KeyRange]:
        """Return the counts so far, and start from zero."""
        chunks, self._chunks = self._chunks, {}
        if self._samples < _SAMPLES_MAX // 4 and self._gap > GAP:
            self._gap //= 2
        self._samples = 0
        return [
            KeyRange(namespace, chunk.min, chunk.max, chunk.min_key, chunk.max_key, counts)
            for (namespace, _), (chunk, counts) in chunks.items()
        ]

    def _next_gap(self) -> int:
        return self._random.randrange(1, 2 * self._gap)

    def _chunk(self, request: Request, shard: str, table: RoutingTable) -> RoutedChunk | None:
        if request.name == "insert":
            document = self._one_of(request, b"documents")
            if document is None:
                return None
            if IS_TIME_SERIES_NAMESPACE in request.fields and table.collection.time_series is not None:
                document = table.collection.time_series.bucket_of(document)
            return table.chunk_for_key(table.key_pattern.key_bytes_of_document(document))
        filter_document = self._filter(request)
        if filter_document is None or IS_TIME_SERIES_NAMESPACE in request.fields:
            return self._owned(EVERYTHING, shard, table)
        return self._owned(key_ranges(filter_document, table.key_pattern), shard, table)

    def _one_of(self, request: Request, name: bytes) -> bytes | None:
        """Return a random document or statement; None if there is none, which mongod refuses."""
        documents = request.documents(name)
        return self._random.choice(documents) if documents else None

    def _filter(self, request: Request) -> bytes | None:
        """Return the operation's filter, or the filter of a random statement if it has several; None without one."""
        if request.name in _FILTERS:
            return request.raw_object(_FILTERS[request.name])
        if request.name in _STATEMENTS:
            statement = self._one_of(request, _STATEMENTS[request.name])
            query = None if statement is None else find(statement, b"q")
            return None if statement is None or query is None or query[0] != OBJECT else statement[query[2] : query[3]]
        span = request.fields.get(b"pipeline")
        return None if span is None or span[0] != ARRAY else _first_match(request.body, span)

    def _owned(self, ranges: KeyRanges, shard: str, table: RoutingTable) -> RoutedChunk | None:
        """Return a random chunk of this shard that overlaps the ranges."""
        if ranges.point is not None:
            return table.chunk_for_key(ranges.point)
        if ranges.is_everything:
            owned = table.chunk_count_of(shard)
            return table.owned_chunk(shard, self._random.randrange(owned)) if owned else None
        if not ranges.ranges:
            return None
        for _ in range(_TRIES):
            low, high = self._random.choice(ranges.ranges)
            chunk = table.chunk_between(low, high, self._random.random())
            if chunk.shard == shard:
                return chunk
        return None


def _first_match(body: bytes, pipeline: Span) -> bytes | None:
    for _, (kind, _, start, _) in spans(body, pipeline[2]):
        if kind != OBJECT:
            return None
        match = find(body, b"$match", start)
        return None if match is None or match[0] != OBJECT else body[match[2] : match[3]]
    return None


def documents_in(reply: bytes) -> int:
    """Return the number of documents in the first batch of a reply, or its ``n``; large batches are estimated.

    Raises InvalidBSONError if the reply is not well-formed.
    """
    cursor = find(reply, b"cursor", BODY_AT)
    if cursor is None:
        span = find(reply, b"n", BODY_AT)
        return decode_value(reply, span) if span is not None and span[0] == INT32 else 0
    batch = index(reply, cursor[2]).get(b"firstBatch")
    return 0 if batch is None or batch[0] != ARRAY else _length(spans(reply, batch[2]), batch)


def _length(documents: Iterable[tuple[bytes, Span]], batch: Span) -> int:
    _, _, start, end = batch
    number = 0
    for number, (_, span) in enumerate(documents, 1):
        if number == _COUNTED_MAX:
            return max(number, round(number * (end - start) / (span[3] - start)))
    return number


@dataclass
class KeyStatisticsParameters:
    """The key statistics parameters of one shard daemon.

    Attributes:
        is_enabled: whether operations are counted (``keyStatistics``).
        interval_seconds: interval between writes of the counts (``keyStatisticsIntervalSecs``).
    """

    is_enabled: bool = True
    interval_seconds: float = MINUTE_SECONDS


class KeyStatistics:
    """The key statistics of this shard daemon."""

    def __init__(self, context: ShardContext, random: Random) -> None:
        self.parameters = KeyStatisticsParameters()
        self.counter = KeyCounter(random)
        self._context = context
        self._minutes: list[list[KeyRange]] = []
        self._history_began = datetime.now(UTC)
        self._may_write: bool | None = None

    async def run(self) -> None:
        """Write the counts of each minute until cancelled."""
        while True:
            began = datetime.now(UTC)
            await trio.sleep(self.parameters.interval_seconds)
            await self.end_minute(began)

    async def end_minute(self, began: datetime) -> None:
        """Write the counts since ``began``, and every tenth time the history."""
        self.counter.is_enabled = self.parameters.is_enabled
        ranges = compressed(self.counter.take())
        if not self._minutes:
            self._history_began = began
        self._minutes.append(ranges)
        await self._write(MINUTES, began, self.parameters.interval_seconds, ranges)
        if len(self._minutes) >= _MINUTES_OF_HISTORY:
            minutes, self._minutes = self._minutes, []
            seconds = self.parameters.interval_seconds * len(minutes)
            await self._write(HISTORY, self._history_began, seconds, added(minutes))

    async def _write(self, collection: str, began: datetime, seconds: float, ranges: list[KeyRange]) -> None:
        if not ranges or self._context.identity is None:
            return
        document: dict[str, Any] = {
            "at": began,
            "seconds": seconds,
            "shard": self._context.identity.shard_name,
            "member": self._context.options.address,
            "collections": collections_of(ranges),
        }
        try:
            catalog = await self._context.catalog()
            if self._may_write is None:
                found = await catalog.command(
                    {"listCollections": 1, "filter": {"name": MINUTES, "options.capped": True}}, db="config"
                )
                # MongoDB's config servers do not have it; an insert would create it without a size limit.
                self._may_write = bool(found["cursor"]["firstBatch"])
            if self._may_write:
                await catalog.command({"insert": collection, "documents": [document]}, db="config")
        except (CommandError, BackendError) as error:
            logger.info("Could not write key statistics", error=str(error))
