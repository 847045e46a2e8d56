"""Range deletion tasks (``config.rangeDeletions``), and the ranges that may hold orphans because of them.

`RangeDeletions` reads and changes the collection and publishes its tasks in `RangeDeletionTasks`. Ownership filters and
refreshes only read them there, so neither side imports the other.

**Orphan ranges** are not stored: they are the parts of range deletions that the routing table assigns to other shards.
So an incoming range is hidden from its registration until the routing table assigns it to this shard. An outgoing range
is hidden once the routing table assigns it to another shard. Neither needs a notification.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import trio
from bson.binary import Binary
from bson.int64 import Int64
from bson.timestamp import Timestamp

from shardwright.sharding.bson_text import document_text
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.document_fields import optional, required, required_uuid
from shardwright.sharding.key_order import encode_key
from shardwright.sharding.refined_key import extend_bound
from shardwright.sharding.routing_table import RoutedChunk, RoutingTable
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.rawbson import encode_document, raw_document

RANGE_DELETIONS: Final = "rangeDeletions"

CLEAN_NOW: Final = "now"
CLEAN_DELAYED: Final = "delayed"
"""Values of ``whenToClean``: once no older operation can read the range, or ``orphanCleanupDelaySecs`` later."""


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The bounds of a range of shard keys, as raw documents; the lower one is inclusive."""

    min: bytes
    max: bytes

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "KeyRange":
        """Read ``{min, max}``; CommandError with NoSuchKey or TypeMismatch."""
        return cls(*(encode_document(required(document, bound, Mapping)) for bound in ("min", "max")))

    def to_document(self) -> dict[str, Any]:
        """Return ``{min, max}``."""
        return {"min": raw_document(self.min), "max": raw_document(self.max)}

    def __str__(self) -> str:
        return f"[{document_text(self.min)}, {document_text(self.max)})"


@dataclass(frozen=True, slots=True)
class RangeDeletionTask:
    """A document of ``config.rangeDeletions``, on donor or recipient.

    Attributes:
        pending: whether the outcome of the migration is still open.
        when: `CLEAN_NOW` or `CLEAN_DELAYED`.
        timestamp: the time at which the task was registered or became ready.
        orphans: approximate number of documents to delete.
    """

    id: UUID
    namespace: str
    collection_uuid: UUID
    donor: str
    range: KeyRange
    pending: bool
    when: str
    timestamp: Timestamp | None = None
    orphans: int = 0

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "RangeDeletionTask":
        """Read a document of the collection; CommandError with NoSuchKey or TypeMismatch."""
        return cls(
            id=required_uuid(document, "_id"),
            namespace=required(document, "nss", str),
            collection_uuid=required_uuid(document, "collectionUuid"),
            donor=required(document, "donorShardId", str),
            range=KeyRange.from_document(required(document, "range", Mapping)),
            pending=bool(optional(document, "pending", bool)),
            when=required(document, "whenToClean", str),
            timestamp=optional(document, "timestamp", Timestamp),
            orphans=optional(document, "numOrphanDocs", int) or 0,
        )

    def to_document(self) -> dict[str, Any]:
        """Return the document as MongoDB 6.0 writes it."""
        document: dict[str, Any] = {
            "_id": Binary.from_uuid(self.id),
            "nss": self.namespace,
            "collectionUuid": Binary.from_uuid(self.collection_uuid),
            "donorShardId": self.donor,
            "range": self.range.to_document(),
        }
        if self.pending:
            document["pending"] = True
        document["whenToClean"] = self.when
        if self.timestamp is not None:
            document["timestamp"] = self.timestamp
        document["numOrphanDocs"] = Int64(self.orphans)
        return document


class RangeDeletionTasks:
    """The cached range deletions. Their ranges are always current, their orphan counts need not be.

    Args:
        on_change: called with a namespace when its range deletions have changed.
    """

    def __init__(self, on_change: Callable[[str], None]) -> None:
        self._tasks: dict[str, Sequence[RangeDeletionTask]] = {}
        self._on_change = on_change
        self._loaded = trio.Event()

    def of(self, namespace: str) -> Sequence[RangeDeletionTask]:
        """Return the unfinished range deletions of a collection, whatever its UUID."""
        return self._tasks.get(namespace, ())

    def put(self, namespace: str, tasks: Sequence[RangeDeletionTask]) -> None:
        """Replace the range deletions of a namespace."""
        if tasks:
            self._tasks[namespace] = tasks
        else:
            self._tasks.pop(namespace, None)
        self._on_change(namespace)

    def set_loaded(self) -> None:
        """Record that all persisted range deletions have been loaded."""
        self._loaded.set()

    def unload(self) -> None:
        """Record that the persisted range deletions must be read again."""
        if self._loaded.is_set():
            self._loaded = trio.Event()

    async def wait_loaded(self) -> None:
        """Wait until the persisted range deletions have been loaded."""
        await self._loaded.wait()


def range_of(task: RangeDeletionTask, pattern: ShardKeyPattern) -> ChunkRange:
    """Return the range of a task, with encoded keys; its bounds may lack fields that refined the shard key since."""
    return extended(task.range.min, task.range.max, pattern)


def extended(low: bytes, high: bytes, pattern: ShardKeyPattern) -> ChunkRange:
    """Return the range between two bounds of the shard key, or of a key that it refines."""
    low, high = extend_bound(low, pattern), extend_bound(high, pattern)
    return ChunkRange(low, high, encode_key(low), encode_key(high))


def orphan_ranges(
    tasks: Iterable[RangeDeletionTask], table: RoutingTable, shard: str, time: Timestamp | None = None
) -> tuple[ChunkRange, ...]:
    """Return the ranges that ``shard`` does not own but may hold documents of, sorted and merged.

    Args:
        tasks: the range deletions of the namespace; another collection with its name is ignored.
        time: a past cluster time at which ``tasks`` were read; None for the present.

    Raises:
        CommandError: StaleChunkHistory, the history in ``table`` does not reach back to ``time`` for one of the ranges.
    """
    uuid = table.collection.uuid
    return merged(
        part
        for task in tasks
        if task.collection_uuid == uuid
        for part, chunk in chunks_within(table, range_of(task, table.key_pattern))
        if (chunk.shard if time is None else table.shard_for_key_at(chunk.min_key, time)) != shard
    )


def chunks_within(table: RoutingTable, wanted: ChunkRange) -> Iterator[tuple[ChunkRange, RoutedChunk]]:
    """Yield the chunks that overlap a range, in order, each with the part inside the range."""
    key = wanted.min_key
    while key < wanted.max_key:
        chunk = table.chunk_for_key(key)
        low = (chunk.min, chunk.min_key) if chunk.min_key >= wanted.min_key else (wanted.min, wanted.min_key)
        high = (chunk.max, chunk.max_key) if chunk.max_key <= wanted.max_key else (wanted.max, wanted.max_key)
        yield ChunkRange(low[0], high[0], low[1], high[1]), chunk
        key = chunk.max_key


def merged(ranges: Iterable[ChunkRange]) -> tuple[ChunkRange, ...]:
    """Sort ranges, and merge ranges that touch or overlap."""
    found: list[ChunkRange] = []
    for each in sorted(ranges, key=lambda each: each.min_key):
        if found and each.min_key <= found[-1].max_key:
            last = found[-1]
            if each.max_key > last.max_key:
                found[-1] = ChunkRange(last.min, each.max, last.min_key, each.max_key)
        else:
            found.append(each)
    return tuple(found)
