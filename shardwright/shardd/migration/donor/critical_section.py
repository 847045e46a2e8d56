"""The donor's critical section: it blocks writes to the collection, and during the commit reads as well.

As in MongoDB it lives in memory: the next primary re-enters it because of the migration's persisted state
(`DonorService.recover`).

Of a time-series collection, the buckets of a range that was given away are closed. mongod keeps buckets open for
further measurements and chooses among them without regard to shard keys. A bucket that begins just before the end of
a range may take measurements that begin a bucket behind it, which is another shard's or still the donor's. If the
range moves and the donor keeps what is behind it, such a measurement would end up in a bucket that is an orphan by
now. MongoDB's donor makes its mongod forget all open buckets; here the buckets in question are closed by an update,
after which mongod opens new ones. They are orphans, so no client sees the difference.
"""

import time
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any, Final

import trio
from bson.timestamp import Timestamp

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.migration.documents import MigrationCoordinatorDocument
from shardwright.shardd.orphans.range_deletion_tasks import KeyRange
from shardwright.sharding.sharded_collection import ShardedCollection
from shardwright.sharding.time_series import TimeSeriesFields
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import decode_document


async def close_open_buckets(mongod: LocalMongod, collection: ShardedCollection, moved: KeyRange) -> None:
    """Close the buckets of a range that mongod might add measurements to that do not belong to the range.

    Args:
        mongod: the local mongod.
        collection: the collection; nothing is done if it does not hold buckets.
        moved: the range that another shard owns now.

    Raises:
        CommandError: mongod refuses.
        BackendError: mongod does not answer.
    """
    fields = collection.time_series
    query = None if fields is None else _endangered(fields, collection, moved)
    if query is None:
        return
    closing = {"q": query, "u": {"$set": {"control.closed": True}}, "multi": True, "collation": {"locale": "simple"}}
    namespace = collection.namespace
    update = {"update": namespace.collection, "updates": [closing], "bypassDocumentValidation": True}
    await mongod.command(namespace.db, update)


def _endangered(fields: TimeSeriesFields, collection: ShardedCollection, moved: KeyRange) -> dict[str, Any] | None:
    """The query for the buckets that begin so shortly before the end of the range that they may reach beyond it.

    Only a key with the time separates measurements of one bucket, and only those with the metadata of the range's end.
    """
    end: dict[str, Any] = decode_document(moved.max)
    time = end.get(fields.min_time_field)
    if not isinstance(time, datetime):
        return None  # the range ends between times, or the key has none
    hashed = collection.key_pattern.hashed_field
    query = {
        name: {"$eq": value}
        for name, value in end.items()
        if name != fields.min_time_field and (hashed is None or name.encode() != hashed.name)
    }
    query[fields.min_time_field] = {"$gte": time - timedelta(milliseconds=fields.span_ms), "$lt": time}
    return query


logger = get_logger("shardd.migration.donor")

DRAIN_SECONDS_MAX: Final = 0.1
"""How long new writes wait for running ones; if that takes longer, the section is retried later."""

TRANSACTION_SECONDS_MAX: Final = 0.5
"""How long to wait in all while transactions are open on the collection; a genuine donor waits as long for its lock."""


class DonorCriticalSection:
    """One migration's critical section.

    Args:
        context: this shard daemon's context.
        coordinator: the migration.

    Attributes:
        seconds: how long it was on, once it has been left.
        phases: milliseconds taken by each of its phases (see `finish`).
    """

    def __init__(self, context: ShardContext, coordinator: MigrationCoordinatorDocument) -> None:
        self.seconds = 0.0
        self.phases: dict[str, float] = {}
        self._context = context
        self._state = context.namespace(coordinator.namespace)
        self._range = coordinator.range
        # The session id distinguishes it from every other section.
        self._reason: dict[str, Any] = {
            "command": "moveChunk",
            "fromShard": coordinator.donor,
            "toShard": coordinator.recipient,
            "sessionId": coordinator.session_id,
        }
        self._transaction_seconds = 0.0
        self._began: float | None = None
        self._last = 0.0

    @property
    def is_on(self) -> bool:
        """Whether it blocks operations."""
        section = self._state.critical_section
        return section is not None and section.reason == self._reason

    async def try_block_writes(self, wait_for_commits: Callable[[], Awaitable[None]]) -> bool:
        """Block new writes and wait for running ones; False if they did not end in time, and writes are admitted again.

        Args:
            wait_for_commits: waits for cross-shard commits whose session history moves with the range.

        Raises:
            CommandError: LockTimeout, transactions were open on the collection whenever this was tried; or from
                ``wait_for_commits``.
        """
        has_drained = False
        with trio.move_on_after(DRAIN_SECONDS_MAX):
            self._began = self._last = time.monotonic()
            await self._state.block_writes(self._reason)
            has_drained = True
            await wait_for_commits()
            self.finish("drain")
            return True
        self.leave()
        if has_drained or self._state.transactions:
            self._transaction_seconds += DRAIN_SECONDS_MAX
        if self._transaction_seconds >= TRANSACTION_SECONDS_MAX:
            raise CommandError(
                ErrorCode.LockTimeout,
                f"Failed to acquire the critical section of {self._state.namespace} within "
                f"{TRANSACTION_SECONDS_MAX * 1000:g} milliseconds because of open transactions",
            )
        return False

    async def restore(self) -> None:
        """Re-enter it in a new term, blocking writes and reads.

        It waits for nothing: no operation is running yet. Prepared transactions inside the collection, whose
        coordinator may be on this shard and not run yet, show that the section was never complete, and so the migration
        not committed.
        """
        self._began = time.monotonic()
        await self._state.enter_section(self._reason)
        self._state.block_reads()

    async def notify_secondaries(self) -> None:
        """Have secondaries forget the placement, as MongoDB's do when ``enterCriticalSectionCounter`` changes.

        A read after the commit then makes each secondary ask the primary, where it waits for the end of this section.

        Raises:
            CommandError: mongod refuses.
            BackendError: mongod does not answer.
        """
        await self._context.store.count_critical_section(self._state.namespace)

    async def last_write_time(self) -> Timestamp:
        """A time not earlier than any admitted write's.

        Raises:
            CommandError: mongod refuses.
            BackendError: mongod does not answer.
        """
        pong = await self._context.mongod.command("admin", {"ping": 1})
        time_of_last: Timestamp = pong["operationTime"]
        return time_of_last

    def block_reads(self) -> None:
        """Enter the second phase, which blocks reads too."""
        self._state.block_reads()

    async def refresh(self) -> None:
        """Refresh the placement after the commit. If that fails, the waiting operations will refresh it themselves."""
        self._state.forget()
        try:
            await self._context.refresher.refresh_collection(self._state)
            await self._close_open_buckets()
        except CommandError as error:
            logger.warning("Could not refresh after a migration", namespace=self._state.namespace, error=str(error))

    async def _close_open_buckets(self) -> None:
        """Close the buckets of a time-series collection that no measurements of this shard may be added to any more."""
        table, moved = self._state.table, self._range
        if table is None or table.shard_for_key(table.key_pattern.key_bytes(moved.min)) == self._state.shard:
            return
        await close_open_buckets(self._context.mongod, table.collection, moved)

    def finish(self, phase: str) -> None:
        """Record how long a phase took, for the log."""
        now = time.monotonic()
        self.phases[f"{phase}_ms"] = round((now - self._last) * 1000, 1)
        self._last = now

    def leave(self) -> None:
        """Release the operations that wait for it; does nothing if it is not on."""
        if self.is_on and self._began is not None:
            self.seconds = time.monotonic() - self._began
            self._state.release()
