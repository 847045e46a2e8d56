"""The ranges of this shard whose documents are, or may become, orphans, from registration to deletion.

A migration registers its range on both sides before it writes the first document. Once its outcome is known, one side
deletes the range (`RangeDeletions.mark_ready`). The other side, which now owns the range, removes its task
(`RangeDeletions.remove`). Until the last document is deleted, no other migration to this shard may overlap the range.
The parts of it that this shard does not own are hidden from operations (`shardd.orphans.range_deletion_tasks`).
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

import trio
from bson.timestamp import Timestamp

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod.reserved_sessions import ReservedSessions
from shardwright.shardd.orphans.fenced_cursors import FencedCursors
from shardwright.shardd.orphans.ownership_filter import OwnershipFilter
from shardwright.shardd.orphans.range_deletion_tasks import RangeDeletionTask, orphan_ranges
from shardwright.shardd.range_deleter.known_deletions import KnownDeletion, KnownDeletions, logger_of
from shardwright.shardd.range_deleter.older_readers import hide_from_cursors_of_secondary, hide_from_older_readers
from shardwright.shardd.range_deleter.range_deleter import RangeDeleter
from shardwright.shardd.range_deleter.task_store import RangeDeletionStore
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


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
        task = await self._store.mark_ready(migration_id, when, await self._now())
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

    async def _now(self) -> Timestamp:
        """Return the current time as the local mongod's ``operationTime``."""
        pong = await self._context.mongod.command("admin", {"ping": 1})
        time: Timestamp = pong["operationTime"]
        return time


def _stepped_down() -> CommandError:
    return CommandError(
        ErrorCode.InterruptedDueToReplStateChange, "operation was interrupted because the primary stepped down"
    )
