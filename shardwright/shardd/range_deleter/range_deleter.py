"""Deletion of a range in batches, after older operations and cursors have ended, and never of owned chunks.

A batch has documents found through the shard key index. They are deleted if they are still in the range.

The parameters (`RangeDeleterParameters`) are read from mongod, which has them with defaults and limits in every role.
``setParameter`` and ``getParameter`` are forwarded as for its other parameters, and mongod's startup values apply here
too.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import trio
from bson.binary import Binary

from shardwright.daemon.backoff import Backoff
from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.context.fail_point_names import (
    HANG_AFTER_DOING_DELETION,
    HANG_BEFORE_DOING_DELETION,
    SUSPEND_RANGE_DELETION,
)
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod.reserved_sessions import ReservedSessions
from shardwright.shardd.local_mongod.shard_key_index import ShardKeyIndex, all_documents, is_range_empty
from shardwright.shardd.orphans.open_cursors import now
from shardwright.shardd.orphans.ownership_filter import OwnershipFilter
from shardwright.shardd.orphans.range_deletion_tasks import (
    CLEAN_NOW,
    KnownDeletion,
    RangeDeletionStore,
    RangeDeletionTask,
    chunks_within,
    range_of,
)
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("shardd.range_deleter")

_CLEANUP_DELAY: Final = "orphanCleanupDelaySecs"
_BATCH_SIZE: Final = "rangeDeleterBatchSize"
_BATCH_DELAY: Final = "rangeDeleterBatchDelayMS"

_BATCH_SIZE_MAX: Final = 1_000
"""Limit for a batch, because it is one transaction, which locks its documents until it commits."""

_DELAYS_FOR_CURSORS: Final = 8
"""Maximum further wait for cursors on other members, as a multiple of ``orphanCleanupDelaySecs``: two hours by default.

Only cursors in use last that long, because idle ones end after ten minutes.
"""

_GONE: Final = frozenset({ErrorCode.NamespaceNotFound, ErrorCode.CollectionUUIDMismatch})


async def next_batch(
    mongod: LocalMongod, namespace: Namespace, uuid: UUID, pattern: ShardKeyPattern, wanted: ChunkRange, size: int
) -> list[bytes]:
    """Return up to ``size`` documents of a range, as raw ``{_id}``; none if it is empty.

    Args:
        uuid: the collection's UUID, because another collection may have taken its name.

    Raises:
        CommandError: IndexNotFound, no index supports the shard key; CollectionUUIDMismatch, the collection no longer
            has this name.
        BackendError: mongod does not answer.
    """
    index = await ShardKeyIndex.find(mongod, namespace, pattern)
    for scan in index.scans(pattern, wanted):
        some = {"projection": {"_id": 1}, "batchSize": size, "limit": size, "singleBatch": True}
        found = await all_documents(mongod, namespace, {**scan, **some, "collectionUUID": Binary.from_uuid(uuid)})
        if found:
            return found
    return []


def delete_statement(
    found: Sequence[bytes], pattern: ShardKeyPattern, wanted: ChunkRange, default_collation: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the statement that deletes documents, except those that have left the range since they were found.

    It uses the collection's collation, so that it can use the ``_id`` index.

    Args:
        found: the documents, as `next_batch` returns them.
    """
    outside = OwnershipFilter(pattern, (wanted,), default_collation).query(default_collation)
    query = {"_id": rawbson.raw_document(one_of(found)), "$nor": [rawbson.raw_document(outside)]}
    return {"q": query, "limit": 0}


def one_of(found: Sequence[bytes]) -> bytes:
    """Return ``{$in: [<_id>, …]}`` with the ids of the documents."""
    ids = []
    for position, document in enumerate(found):
        span = rawbson.find(document, b"_id")
        assert span is not None
        ids.append(rawbson.element(b"%d" % position, span[0], document[span[2] : span[3]]))
    return rawbson.wrap_value(rawbson.ARRAY, rawbson.from_elements(b"".join(ids)), b"$in")


@dataclass(frozen=True, slots=True)
class RangeDeleterParameters:
    """Delays and batch size of range deletions.

    Attributes:
        cleanup_delay_seconds: time between the end of a migration and the deletion, for reads on secondaries.
        batch_delay_seconds: the pause between batches.
    """

    cleanup_delay_seconds: float
    batch_size: int
    batch_delay_seconds: float

    @classmethod
    async def read(cls, mongod: LocalMongod) -> "RangeDeleterParameters":
        """Read the current parameters from mongod.

        Raises:
            CommandError: mongod refuses.
            BackendError: mongod does not answer.
        """
        names = dict.fromkeys((_CLEANUP_DELAY, _BATCH_SIZE, _BATCH_DELAY), 1)
        return cls.from_values(await mongod.command("admin", {"getParameter": 1, **names}))

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "RangeDeleterParameters":
        """Convert mongod's values."""
        size = min(values[_BATCH_SIZE] or _BATCH_SIZE_MAX, _BATCH_SIZE_MAX)
        return cls(values[_CLEANUP_DELAY], size, values[_BATCH_DELAY] / 1000)


class RangeDeleter:
    """Deletion of one shard's ranges, a batch at a time.

    Args:
        sessions: the reserved sessions in which documents are deleted.
        on_deleted: called after each batch with the migration's id and the number of documents deleted.
        keep_sessions: refreshes the sessions on mongod whose documents are about to be deleted.
    """

    def __init__(
        self,
        context: ShardContext,
        sessions: ReservedSessions,
        store: RangeDeletionStore,
        on_deleted: Callable[[UUID, int], None],
        keep_sessions: Callable[[], Awaitable[None]],
    ) -> None:
        self._context = context
        self._sessions = sessions
        self._store = store
        self._on_deleted = on_deleted
        self._keep_sessions = keep_sessions
        self._turn = trio.Lock()
        metrics = context.metrics
        self._deleted = metrics.counter("range_deleter_documents", "Orphaned documents deleted by the range deleter")
        self._failures = metrics.counter(
            "range_deleter_failures", "Range deletion attempts that failed and are retried"
        )

    async def delete(self, deletion: KnownDeletion) -> None:
        """Wait until a range may be deleted, then delete its documents and finally its task.

        Every attempt reads the task again, because its collection may have been renamed since the last one. Failed
        attempts are repeated until the term ends: a half-deleted range does no harm, a lost task does.

        Raises:
            CommandError: IllegalOperation, this shard owns part of the range.
        """
        backoff = Backoff(first_seconds=0.1, seconds_max=10.0)
        ready_at = ready_seconds(deletion.task, time.time())
        while True:
            task = deletion.task
            try:
                await self._wait_allowed(task, ready_at)
                await self._delete_documents(task)
                await self._store.delete(task.id)
            except OwnedRangeError:
                raise
            except (CommandError, BackendError) as error:
                self._failures.add()
                logger.warning(
                    "Retrying a range deletion",
                    namespace=task.namespace,
                    migration=str(task.id),
                    error=str(error),
                )
                await backoff.pause()
            else:
                return

    async def wait_older_operations(self, namespace: str) -> None:
        """Wait until all present operations on a collection, and the cursors that they leave open, have ended.

        Raises:
            CommandError: mongod refuses.
            BackendError: mongod does not answer.
        """
        await self._context.namespace(namespace).wait_earlier_operations()
        await self._context.open_cursors.wait_closed(namespace, opened_until=now())

    async def _wait_allowed(self, task: RangeDeletionTask, ready_at: float) -> None:
        await self.wait_older_operations(task.namespace)
        if Namespace.parse(task.namespace).is_logical_sessions:
            await self._keep_sessions()
        await self._context.fail_points.hang_while(SUSPEND_RANGE_DELETION)
        if task.when != CLEAN_NOW and not await self._is_empty(task):
            # Secondaries may not have the new placement yet, so their reads may still need the range.
            delay = (await RangeDeleterParameters.read(self._context.mongod)).cleanup_delay_seconds
            await trio.sleep(remaining_seconds(ready_at, delay, time.time()))
            until_cursors_end = delay + delay * _DELAYS_FOR_CURSORS
            await self._wait_other_members(task.namespace, remaining_seconds(ready_at, until_cursors_end, time.time()))

    async def _wait_other_members(self, namespace: str, seconds_max: float) -> None:
        """Wait until the cursors on a collection that are open on other members are closed, or the time is over."""
        with trio.move_on_after(seconds_max) as patience:
            async with trio.open_nursery() as nursery:
                for address in self._context.sidecar.mirror.other_members:
                    nursery.start_soon(self._wait_member, address, namespace)
        if patience.cancelled_caught:
            logger.info("Deleting a range that cursors on other members may need", namespace=namespace)

    async def _wait_member(self, address: str, namespace: str) -> None:
        try:
            await self._context.open_cursors.wait_closed_on(self._context.mongod.pool_of_member(address), namespace)
        except (CommandError, BackendError) as error:
            logger.info("Could not ask a member for its cursors", member=address, error=str(error))

    async def _is_empty(self, task: RangeDeletionTask) -> bool:
        """Whether there is nothing to delete, as when a chunk was moved before it had any documents.

        Then no read can miss anything, but every read pays for the filter while the range deletion exists. A migration
        that brings the range back hides it again.
        """
        table = await self.authoritative_table(task)
        if table is None:
            return True
        return await is_range_empty(
            self._context.mongod, Namespace.parse(task.namespace), table.key_pattern, range_of(task, table.key_pattern)
        )

    async def _delete_documents(self, task: RangeDeletionTask) -> None:
        """Delete all documents of the range on a majority; OwnedRangeError if this shard owns part of it."""
        context, total = self._context, 0
        table = await self.authoritative_table(task)
        if table is None:
            await self._check_dropped(task)
            return
        await context.fail_points.hang_while(HANG_BEFORE_DOING_DELETION)
        while True:
            parameters = await RangeDeleterParameters.read(context.mongod)
            async with self._turn:
                self._refuse_owned(task, table)
                try:
                    deleted = await self._delete_batch(task, table, parameters.batch_size)
                except CommandError as error:
                    if error.code not in _GONE:
                        raise
                    await self._check_dropped(task)
                    return
                if not deleted:
                    break
                total += deleted
                self._deleted.add(deleted)
                await self._store.add_orphans(task.id, -deleted)
                self._on_deleted(task.id, deleted)
                await context.fail_points.hang_while(HANG_AFTER_DOING_DELETION)
                await trio.sleep(parameters.batch_delay_seconds)
            current = context.namespace(task.namespace).table
            if current is not None and current.collection.uuid == task.collection_uuid:
                table = current  # else another collection has the name here, and mongod will refuse the next batch
        await context.wait_majority()
        logger.info("Deleted a range", namespace=task.namespace, migration=str(task.id), documents=total)

    async def authoritative_table(self, task: RangeDeletionTask) -> RoutingTable | None:
        """Return the config servers' routing table; None if the task's collection no longer exists."""
        table = await self._context.refresher.current_table(self._context.namespace(task.namespace))
        return table if table is not None and table.collection.uuid == task.collection_uuid else None

    async def _check_dropped(self, task: RangeDeletionTask) -> None:
        """Check that a collection missing under its name was dropped rather than renamed.

        Raises:
            CommandError: ConflictingOperationInProgress, it has been or is being renamed; the task will also get the
                new name.
        """
        catalog = await self._context.catalog()
        if await catalog.find("collections", {"uuid": Binary.from_uuid(task.collection_uuid)}):
            raise CommandError(ErrorCode.ConflictingOperationInProgress, f"{task.namespace} is being renamed")
        logger.info("The collection of a range deletion was dropped", namespace=task.namespace, migration=str(task.id))

    def _refuse_owned(self, task: RangeDeletionTask, table: RoutingTable) -> None:
        this = self._context.require_identity().shard_name
        for _, chunk in chunks_within(table, range_of(task, table.key_pattern)):
            if chunk.shard == this:
                raise OwnedRangeError(
                    ErrorCode.IllegalOperation,
                    f"refusing to delete the range {task.range} of {task.namespace}: this shard owns the chunk "
                    f"[{document_text(chunk.min)}, {document_text(chunk.max)})",
                )

    async def _delete_batch(self, task: RangeDeletionTask, table: RoutingTable, size: int) -> int:
        """Delete up to ``size`` documents of the range; return the number deleted, 0 if none were left."""
        namespace, pattern = Namespace.parse(task.namespace), table.key_pattern
        wanted = range_of(task, pattern)
        found = await next_batch(self._context.mongod, namespace, task.collection_uuid, pattern, wanted, size)
        if not found:
            return 0
        delete: dict[str, Any] = {
            "delete": namespace.collection,
            "deletes": [delete_statement(found, pattern, wanted, table.collection.default_collation)],
            "collectionUUID": Binary.from_uuid(task.collection_uuid),
        }
        async with self._sessions.session() as session:
            (reply,) = await session.run(namespace.db, [delete])
        if not reply["n"]:
            # Another client deleted them, or the query and the delete disagree about the range; do not loop on that.
            raise CommandError(ErrorCode.OperationFailed, "none of the orphans that were found could be deleted")
        return int(reply["n"])


def ready_seconds(task: RangeDeletionTask, now: float) -> float:
    """Return the time since which a range may be deleted, in seconds since the epoch; all waits start there.

    The time is persisted with the task, so the waits do not restart in the next term.

    Args:
        task: the task, whose timestamp is the time at which it became ready.
        now: the present, used if the task has no timestamp.
    """
    return now if task.timestamp is None else task.timestamp.time


def remaining_seconds(ready_at: float, seconds: float, now: float) -> float:
    """Return the remaining part of a wait, which is shorter after a restart or a failed attempt.

    Args:
        ready_at: the time at which the range became ready (`ready_seconds`).
        now: seconds since the epoch, by a clock that may differ from the clock of ``ready_at``.
    """
    return min(max(ready_at + seconds - now, 0), seconds)


class OwnedRangeError(CommandError):
    """This shard owns part of a range that was to be deleted."""
