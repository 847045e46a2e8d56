"""The ranges of this shard whose documents are, or may become, orphans, from registration to deletion.

A migration registers its range on both sides before it writes the first document. Once its outcome is known, one side
deletes the range (`RangeDeletions.mark_ready`). The other side, which now owns the range, removes its task
(`RangeDeletions.remove`). Until the last document is deleted, no other migration to this shard may overlap the range.
The parts of it that this shard does not own are hidden from operations (`shardd.orphans.range_deletion_tasks`).

**Older readers.** A read that is older than the migration sees the range on its donor, so it must not see it here as
well. The range is hidden before its first document is written (`hide_from_older_readers`). Operations that begin from
now on have the ownership filter. Running operations are of three kinds, and the migration never waits long for readers:

- Unanswered reads are discarded and run again with a filter (`VersionedOperations`).
- The range is hidden from open cursors (`fenced_cursors`).
- Writes, such as a long ``updateMany``, cannot be repeated. If they do not end in time, the range is refused.

**Reads at a past time** (``atClusterTime``) return the data of that time, so they are filtered by the ownership of that
time (`ownership_at`). The ranges that could hold orphans are read from ``config.rangeDeletions`` at the same time, on
the same mongod. A reader that could see an orphan therefore also sees its range deletion. Documents that were migrated
and deleted since remain visible, because mongod keeps them as long as it serves reads at that time.

Functions that access mongod raise CommandError if it refuses, and BackendError if it does not answer.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

import trio
from bson.timestamp import Timestamp

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.daemon.sidecar.noop_writer import READ_CONCERN
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod.reserved_sessions import ReservedSessions
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.shardd.orphans.fenced_cursors import FencedCursors
from shardwright.shardd.orphans.ownership_filter import OwnershipFilter
from shardwright.shardd.orphans.range_deletion_tasks import (
    KnownDeletion,
    KnownDeletions,
    RangeDeletionStore,
    RangeDeletionTask,
    logger_of,
    orphan_ranges,
)
from shardwright.shardd.range_deleter.range_deleter import RangeDeleter
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.routing_table import RoutingTable
from shardwright.wire import rawbson
from shardwright.wire.cursor_batch import RawBatch, id_in_reply
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import decode_document
from shardwright.wire.request import Request

READS_SECONDS_MAX: Final = 0.2
"""Maximum wait for running reads, which is cheaper than repeating them."""

WRITES_SECONDS_MAX: Final = 10.0

_AT_TIME: Final = b"atClusterTime"


async def hide_from_older_readers(state: NamespaceState, cursors: FencedCursors, hidden: OwnershipFilter) -> None:
    """Hide later writes to some ranges from all running operations; LockTimeout if an older write does not end."""
    with trio.move_on_after(READS_SECONDS_MAX):
        await state.wait_earlier_operations()
    with trio.move_on_after(WRITES_SECONDS_MAX) as patience:
        await state.wait_earlier_writes()
    if patience.cancelled_caught:
        raise CommandError(
            ErrorCode.LockTimeout,
            f"a write that began before a range of {state.namespace} was to be received is still running",
        )
    state.supersede_earlier_reads(hidden)
    await cursors.hide(state.namespace, hidden)


async def hide_from_cursors_of_secondary(
    state: NamespaceState, cursors: FencedCursors, task: RangeDeletionTask
) -> None:
    """Hide an incoming range, before the primary writes it, from the cursors that are open on this secondary.

    They may have been opened while this was the primary. The migration does not wait for them.
    """
    if state.last_table is None or task.donor == state.shard:
        return  # no read of the collection came through this daemon, or the range is leaving this shard
    table = state.last_table
    # If the table already assigns the range to this shard, nothing is hidden: readers may rightly see it.
    ranges = orphan_ranges([task], table, state.shard)
    if ranges:
        hidden = OwnershipFilter(table.key_pattern, ranges, table.collection.default_collation)
        await cursors.hide(task.namespace, hidden)


async def close_cursor(mongod: LocalMongod, namespace: Namespace, body: bytes) -> None:
    """Close the cursor of a discarded reply."""
    cursor_id = _cursor_id(body)
    if cursor_id:
        await mongod.command(namespace.db, {"killCursors": namespace.collection, "cursors": [cursor_id]})


def has_more(frame: bytes, results_max: Callable[[], int | None]) -> bool:
    """Whether a first batch leaves a cursor open that may return more documents.

    mongod keeps some exhausted cursors open.

    Args:
        results_max: returns the maximum number of documents of the cursor, None without a limit.
    """
    cursor_id = id_in_reply(frame)
    if cursor_id is None or not any(frame[cursor_id[2] : cursor_id[3]]):
        return False
    most = results_max()
    return most is None or len(RawBatch(frame).documents()) < most


def _cursor_id(body: bytes) -> int:
    cursor = rawbson.find(body, b"cursor")
    return 0 if cursor is None else int(rawbson.decode_value(body, rawbson.index(body, cursor[2])[b"id"]))


class RangeDeletions:
    """The range deletions of one shard daemon.

    The primary changes them; a secondary follows the changes as they are replicated (`observe`). They are published
    through the context (`RangeDeletionTasks`).

    Methods that access mongod raise CommandError if it refuses, and BackendError if it does not answer.

    Args:
        sessions: the reserved sessions in which documents are deleted.
        keep_sessions: refreshes the sessions on mongod whose documents are about to be deleted.
    """

    def __init__(
        self,
        context: ShardContext,
        sessions: ReservedSessions,
        fenced_cursors: FencedCursors,
        keep_sessions: Callable[[], Awaitable[None]],
    ) -> None:
        self._context = context
        self._older_cursors = fenced_cursors
        self.known = KnownDeletions(context.range_deletion_tasks)
        self._store = RangeDeletionStore(context.mongod)
        self._deleter = RangeDeleter(context, sessions, self._store, self._on_deleted, keep_sessions)
        self._nursery: trio.Nursery | None = None
        metrics = context.metrics
        metrics.gauge("range_deletions_pending", "Range deletions not yet finished", lambda: len(self.known))
        metrics.gauge("orphan_documents", "Orphaned documents waiting to be deleted", lambda: self.known.orphans)

    # Terms

    async def begin_term(self, term: int, nursery: trio.Nursery) -> None:
        """Load the persisted range deletions, and start the ready ones."""
        await self._store.prepare()
        await self.reload()
        self._nursery = nursery
        for deletion in self.known:
            if not deletion.task.pending:
                self._start(deletion)

    def end_term(self) -> None:
        """End all waits; the deletions were cancelled with their nursery, and the next primary resumes them."""
        self._nursery = None
        self.known.unload(_stepped_down())

    # Changes

    async def register(self, task: RangeDeletionTask) -> None:
        """Persist on a majority that a range may hold orphans; does nothing if it is already registered and hidden.

        On the recipient, no operation in progress sees later writes to the range (`hide_from_older_readers`). If hiding
        a range has failed, the next registration repeats it.

        Raises:
            CommandError: the task could not be persisted; NotWritablePrimary, this is not a (recovered) primary;
                LockTimeout, an older write that might see the documents is running.
        """
        self._require_term()
        deletion = self.known.find(task.id)
        if deletion is None:
            await self._store.insert(task)
            deletion = self.known.adopt(task)
            logger_of(task).info("Registered a range deletion")
        if not deletion.is_hidden:
            await self._hide(task)
            deletion.is_hidden = True

    async def mark_ready(self, migration_id: UUID, *, when: str) -> None:
        """Persist on a majority that a range may be deleted, and start the deletion.

        The deletion waits for the current operations and cursors. A range without a task has been deleted already.

        Args:
            when: `CLEAN_NOW`, or `CLEAN_DELAYED` for ``orphanCleanupDelaySecs`` later, unless the range is empty.

        Raises:
            CommandError: the change could not be persisted; NotWritablePrimary, this is not a (recovered) primary.
        """
        self._require_term()
        task = await self._store.mark_ready(migration_id, when, await self._context.mongod.operation_time())
        if task is None:
            self.known.forget(migration_id)
            return
        deletion = self.known.adopt(task)
        logger_of(task).info("Scheduled a range deletion", when=when)
        self._start(deletion)

    async def remove(self, migration_id: UUID) -> None:
        """Remove, on a majority, the task of a range that this shard owns for good.

        Raises:
            CommandError: the change could not be persisted; NotWritablePrimary, this is not a (recovered) primary;
                IllegalOperation, the range is being deleted.
        """
        self._require_term()
        deletion = self.known.find(migration_id)
        if deletion is not None and deletion.is_running:
            raise CommandError(ErrorCode.IllegalOperation, f"the range of migration {migration_id} is being deleted")
        await self._store.delete(migration_id)
        self.known.forget(migration_id)

    async def rename(self, collection_uuid: UUID, target: str) -> None:
        """Record, on a majority, that a collection has another name; running deletions continue under that name.

        Raises:
            CommandError: the change could not be persisted; NotWritablePrimary, this is not a (recovered) primary.
        """
        self._require_term()
        await self._store.rename(collection_uuid, target)
        for deletion in self.known:
            if deletion.task.collection_uuid == collection_uuid:
                self.known.adopt(replace(deletion.task, namespace=target))

    async def add_orphan_count(self, migration_id: UUID, count: int) -> None:
        """Add to the recorded number of orphans of a range; a negative number subtracts."""
        await self._store.add_orphans(migration_id, count)
        self.known.add_orphans(migration_id, count)

    # Persisted state

    async def tasks_at(self, namespace: str, time: Timestamp) -> list[RangeDeletionTask]:
        """Return the range deletions of a collection at a cluster time; errors as `RangeDeletionStore.load_at`."""
        return await self._store.load_at(namespace, time)

    async def reload(self) -> None:
        """Replace the range deletions by the tasks persisted on the local mongod."""
        self.known.replace(await self._store.load())

    async def observe_gap(self) -> None:
        """Catch up after a secondary's mongod may have applied oplog entries that were not observed."""
        before = {deletion.task.id for deletion in self.known}
        await self.reload()
        for deletion in self.known:
            if deletion.task.id not in before and deletion.task.pending:
                await self._hide_on_secondary(deletion.task)

    async def observe(self, entry: Mapping[str, Any]) -> None:
        """Follow an oplog entry of ``config.rangeDeletions`` that a secondary's mongod has applied.

        Updates never change a task's range; one that renames its collection changes the whole document.
        """
        if entry["op"] == "i":
            task = RangeDeletionTask.from_document(entry["o"])
            self.known.adopt(task)
            await self._hide_on_secondary(task)
        elif entry["op"] == "u" and "nss" in entry["o"].get("diff", {}).get("u", entry["o"]):
            await self.reload()
        elif entry["op"] == "d":
            self.known.forget(entry["o"]["_id"].as_uuid())

    # Internals

    async def _hide(self, task: RangeDeletionTask) -> None:
        shard = self._context.require_identity().shard_name
        if task.donor == shard:
            return  # it owns the range, which all operations may see
        state = self._context.namespace(task.namespace)
        table = state.table if state.is_known else await self._deleter.authoritative_table(task)
        ranges = orphan_ranges([task], table, shard) if table else ()
        if table is not None and ranges:
            hidden = OwnershipFilter(table.key_pattern, ranges, table.collection.default_collation)
            await hide_from_older_readers(state, self._older_cursors, hidden)

    async def _hide_on_secondary(self, task: RangeDeletionTask) -> None:
        state = self._context.namespaces.find(task.namespace)
        if state is not None:  # else no read of the collection came through this daemon, so there are no cursors
            await hide_from_cursors_of_secondary(state, self._older_cursors, task)

    def _start(self, deletion: KnownDeletion) -> None:
        if self._nursery is not None and not deletion.is_running:  # else the term is over: the next primary starts it
            deletion.is_running = True
            self._nursery.start_soon(self._delete, deletion)

    async def _delete(self, deletion: KnownDeletion) -> None:
        task = deletion.task
        try:
            await self._deleter.delete(deletion)
            self.known.forget(task.id)
        except CommandError as error:
            # The range stays hidden and blocks migrations until an operator intervenes or the next primary retries.
            logger_of(task).error("Could not delete a range", error=str(error))
            deletion.end(error)
        finally:
            deletion.is_running = False

    def _on_deleted(self, migration_id: UUID, count: int) -> None:
        self.known.add_orphans(migration_id, -count)

    def _require_term(self) -> None:
        if self._nursery is None:
            raise CommandError(ErrorCode.NotWritablePrimary, "not primary")


def _stepped_down() -> CommandError:
    return CommandError(
        ErrorCode.InterruptedDueToReplStateChange, "operation was interrupted because the primary stepped down"
    )


def snapshot_time(request: Request) -> Timestamp | None:
    """Return the past time at which a request reads; None if it reads the present."""
    raw = request.raw_object(READ_CONCERN)
    if raw is None or _AT_TIME not in raw:
        return None
    concern = decode_document(raw)
    time = concern.get("atClusterTime")
    return time if concern.get("level") == "snapshot" and isinstance(time, Timestamp) else None


async def ownership_at(
    range_deletions: RangeDeletions, table: RoutingTable, shard: str, time: Timestamp
) -> OwnershipFilter | None:
    """Return the filter for a read at a time; None if there were no orphans.

    Args:
        table: the routing table whose version the read was admitted with.

    Raises:
        CommandError: StaleChunkHistory, the history of the chunks does not reach back that far; SnapshotTooOld, the
            history of the data does not; or mongod cannot read at that time for another reason.
        BackendError: mongod does not answer.
    """
    tasks = await range_deletions.tasks_at(str(table.namespace), time)
    ranges = orphan_ranges(tasks, table, shard, time)
    return OwnershipFilter(table.key_pattern, ranges, table.collection.default_collation) if ranges else None
