"""The range deletions recorded in a daemon, and waits for their ends."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from uuid import UUID

import trio

from shardwright.shardd.orphans.range_deletion_tasks import RangeDeletionTask, RangeDeletionTasks, range_of
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import Logger, get_logger

logger = get_logger("shardd.range_deleter")


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
