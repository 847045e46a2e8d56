"""Range deletion tasks (``config.rangeDeletions``), and the ranges that may hold orphans because of them.

`RangeDeletions`, in `range_deleter`, publishes its tasks in `RangeDeletionTasks`. Ownership filters and refreshes read
them there, so neither side imports the other.

**Orphan ranges** are not stored: they are the parts of range deletions that the routing table assigns to other shards.
So an incoming range is hidden from its registration until the routing table assigns it to this shard. An outgoing range
is hidden once the routing table assigns it to another shard. Neither needs a notification.

**Records.** ``config.rangeDeletions`` of the local mongod (`RangeDeletionStore`) has the ranges of this shard that are,
or may have to be, deleted. `KnownDeletions` has the ranges that the daemon has read or registered, each with its
progress and the waits for its end.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

import bson
import trio
from bson.binary import Binary
from bson.int64 import Int64
from bson.timestamp import Timestamp

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.local_collections import MAJORITY, ConfigCollection
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.catalog.documents import RANGE_DELETIONS_INDEXES
from shardwright.sharding.chunk_changes import extend_bound
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.document_fields import optional, required, required_uuid
from shardwright.sharding.key_order import encode_key
from shardwright.sharding.routing_table import RoutedChunk, RoutingTable
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import Logger, get_logger
from shardwright.wire.rawbson import encode_document, raw_document

logger = get_logger("shardd.range_deleter")

RANGE_DELETIONS: Final = "rangeDeletions"

CLEAN_NOW: Final = "now"
CLEAN_DELAYED: Final = "delayed"
"""Values of ``whenToClean``: once no older operation can read the range, or ``orphanCleanupDelaySecs`` later."""

_CONFIG: Final = "config"


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


class RangeDeletionStore:
    """The persisted tasks of range deletions.

    Methods raise CommandError if mongod refuses, and BackendError if it does not answer. Writes other than
    `add_orphans` wait for a majority.
    """

    def __init__(self, mongod: LocalMongod) -> None:
        self._mongod = mongod
        self._documents = ConfigCollection(mongod, RANGE_DELETIONS)

    async def prepare(self) -> None:
        """Create the index that MongoDB has on the collection; only on a primary."""
        indexes = [each.to_specification() for each in RANGE_DELETIONS_INDEXES]
        await self._mongod.command(_CONFIG, {"createIndexes": RANGE_DELETIONS, "indexes": indexes})

    async def load(self) -> list[RangeDeletionTask]:
        """Return all tasks on the local mongod, whatever its role; CommandError if one is malformed."""
        documents = await self._documents.all(may_be_secondary=True)
        return [RangeDeletionTask.from_document(document) for document in documents]

    async def load_at(self, namespace: str, time: Timestamp) -> list[RangeDeletionTask]:
        """Return a collection's tasks as they were at a cluster time; mongod may have any role.

        Raises:
            CommandError: SnapshotTooOld, or another error of mongod about that time; or a document is malformed.
        """
        documents = await self._documents.all_at(time, {"nss": namespace})
        return [RangeDeletionTask.from_document(document) for document in documents]

    async def insert(self, task: RangeDeletionTask) -> None:
        """Insert a task; does nothing if it exists already."""
        insert = {"insert": RANGE_DELETIONS, "documents": [task.to_document()], "writeConcern": MAJORITY}
        try:
            with trio.CancelScope(shield=True):  # if cancelled, it might reach mongod after the migration's abort
                await self._mongod.write(_CONFIG, insert)
        except CommandError as error:
            if error.code != ErrorCode.DuplicateKey:
                raise

    async def mark_ready(self, migration_id: UUID, when: str, timestamp: Timestamp) -> RangeDeletionTask | None:
        """Mark a task as no longer pending; return the updated task, None if it does not exist."""
        pending = {"_id": Binary.from_uuid(migration_id), "pending": {"$exists": True}}
        ready = {"$unset": {"pending": ""}, "$set": {"whenToClean": when, "timestamp": timestamp}}
        update = {"update": RANGE_DELETIONS, "updates": [{"q": pending, "u": ready}], "writeConcern": MAJORITY}
        await self._mongod.write(_CONFIG, update)
        document = await self._documents.get(Binary.from_uuid(migration_id))
        return None if document is None else RangeDeletionTask.from_document(document)

    async def rename(self, collection_uuid: UUID, target: str) -> None:
        """Change the collection name in the tasks of a collection."""
        for task in await self.load():
            if task.collection_uuid == collection_uuid:
                # One by one, so that mongod can refuse them if they arrive in a later term.
                renaming = {"q": {"_id": Binary.from_uuid(task.id)}, "u": {"$set": {"nss": target}}}
                update = {"update": RANGE_DELETIONS, "updates": [renaming], "writeConcern": MAJORITY}
                await self._mongod.write(_CONFIG, update)

    async def delete(self, migration_id: UUID) -> None:
        """Remove a task, if it exists."""
        await self._documents.remove(Binary.from_uuid(migration_id))

    async def add_orphans(self, migration_id: UUID, count: int) -> None:
        """Add to the number of orphans of a task."""
        update = {"q": {"_id": Binary.from_uuid(migration_id)}, "u": {"$inc": {"numOrphanDocs": bson.Int64(count)}}}
        await self._mongod.write(_CONFIG, {"update": RANGE_DELETIONS, "updates": [update], "writeConcern": {"w": 1}})


class KnownDeletion:
    """One recorded range deletion, and an event for its end.

    Attributes:
        is_running: whether the deletion has been started in this term.
        is_hidden: whether the range has been hidden from the operations that are older than its registration.
    """

    def __init__(self, task: RangeDeletionTask) -> None:
        self.task = task
        self.is_running = False
        self.is_hidden = False
        self._ended = trio.Event()
        self._error: CommandError | None = None

    @property
    def has_ended(self) -> bool:
        """Whether `end` was called."""
        return self._ended.is_set()

    def end(self, error: CommandError | None = None) -> None:
        """Record that the range was deleted or removed, or the error that prevents both for now."""
        self._error = error
        self._ended.set()

    async def wait_ended(self) -> None:
        """Wait until the range is deleted or removed, or raise the error that prevents it for now."""
        await self._ended.wait()
        if self._error is not None:
            raise self._error


class KnownDeletions:
    """All range deletions recorded in a daemon, by migration."""

    def __init__(self, published: RangeDeletionTasks) -> None:
        self._published = published
        self._all: dict[UUID, KnownDeletion] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[KnownDeletion]:
        return iter(list(self._all.values()))

    def find(self, migration_id: UUID) -> KnownDeletion | None:
        """Return the range deletion of a migration, None if there is none."""
        return self._all.get(migration_id)

    def tasks_of(self, namespace: str) -> list[RangeDeletionTask]:
        """Return the unfinished range deletions of a collection, whatever its UUID."""
        return [each.task for each in self._all.values() if each.task.namespace == namespace]

    @property
    def orphans(self) -> int:
        """Approximate number of documents to delete."""
        return sum(each.task.orphans for each in self._all.values())

    # Changes

    def adopt(self, task: RangeDeletionTask) -> KnownDeletion:
        """Record a new or changed task; an earlier error is cleared, so that its end can be awaited again."""
        known = self._all.get(task.id)
        if known is None:
            known = self._all[task.id] = KnownDeletion(task)
            self._publish(task.namespace)
        elif known.has_ended:
            known = self._all[task.id] = KnownDeletion(task)
        else:
            before, known.task = known.task.namespace, task
            if before != task.namespace:
                self._publish(before)
                self._publish(task.namespace)
        return known

    def forget(self, migration_id: UUID) -> None:
        """Remove a range that is deleted, or that this shard owns for good, if it is recorded."""
        known = self._all.pop(migration_id, None)
        if known is not None:
            self._publish(known.task.namespace)
            known.end()

    def replace(self, tasks: Iterable[RangeDeletionTask]) -> None:
        """Replace all tasks by the persisted ones."""
        present = {task.id: task for task in tasks}
        for migration_id in [each for each in self._all if each not in present]:
            self.forget(migration_id)
        for task in present.values():
            self.adopt(task)
        self._published.set_loaded()

    def unload(self, error: CommandError) -> None:
        """End all waits with an error, at the end of a term; the persisted tasks must be read again."""
        self._published.unload()
        for each in self._all.values():
            if not each.has_ended:
                each.end(error)

    def add_orphans(self, migration_id: UUID, count: int) -> None:
        """Add to the number of orphans of a range, if it is recorded; a negative number subtracts."""
        known = self._all.get(migration_id)
        if known is not None:
            known.task = replace(known.task, orphans=max(known.task.orphans + count, 0))

    # Waits

    async def wait_no_overlap(
        self,
        namespace: str,
        collection_uuid: UUID,
        range: ChunkRange,
        pattern: ShardKeyPattern,
        *,
        ignoring: UUID | None = None,
    ) -> None:
        """Wait until no registered range overlaps the given one, or raise the error that prevents it for now."""
        while True:
            overlapping = [
                each
                for each in self._all.values()
                if each.task.id != ignoring
                and each.task.namespace == namespace
                and each.task.collection_uuid == collection_uuid
                and range_of(each.task, pattern).overlaps(range)
            ]
            if not overlapping:
                return
            logger_of(overlapping[0].task).info("Waiting for an overlapping range deletion")
            await overlapping[0].wait_ended()

    async def wait_deleted(self, migration_id: UUID) -> None:
        """Wait until a migration's range, if any, is deleted or removed; errors as `KnownDeletion.wait_ended`."""
        known = self._all.get(migration_id)
        if known is not None:
            await known.wait_ended()

    async def wait_all_deleted(self, namespace: str) -> None:
        """Wait until all deletable ranges are gone, for ``cleanupOrphaned``; errors as `KnownDeletion.wait_ended`."""
        for each in [each for each in self._all.values() if each.task.namespace == namespace]:
            if not each.task.pending:
                await each.wait_ended()

    def _publish(self, namespace: str) -> None:
        self._published.put(namespace, self.tasks_of(namespace))


def logger_of(task: RangeDeletionTask) -> Logger:
    """Return a logger whose lines identify a range deletion."""
    return logger.bind(
        namespace=task.namespace,
        migration=str(task.id),
        range=str(task.range),
        orphans=task.orphans,
    )
