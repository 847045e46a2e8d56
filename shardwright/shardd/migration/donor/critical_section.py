"""The donor's critical section: it blocks writes to the collection, and during the commit reads as well.

As in MongoDB it lives in memory: the next primary re-enters it because of the migration's persisted state
(`DonorService.recover`).

Some buckets of a time-series collection are closed after the move. mongod keeps buckets open for further measurements
and chooses among them without regard to shard keys. So a bucket that begins just before the end of a range may receive
measurements from beyond the end, which belong to another shard or still to the donor. If the donor owns them, they
would go to a bucket that is now an orphan. MongoDB's donor makes its mongod clear its bucket catalog. Here an update
closes the endangered buckets, after which mongod opens new ones. They are orphans, so clients see no difference.
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
    """Close the buckets of a moved range that might receive measurements from outside the range.

    Args:
        collection: the collection; nothing is done if it does not hold buckets.
        moved: the range that another shard owns now.
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
    """Return the query for the buckets that begin so shortly before the range's end that they may extend beyond it.

    Measurements of one bucket can be separated only by a key with the time, and only if they have the metadata of the
    range's end.
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
"""Time that new writes wait for running ones; after that the section is left, and retried later."""

TRANSACTION_SECONDS_MAX: Final = 0.5
"""Total time to wait while transactions are open on the collection; MongoDB's donor waits as long for its lock."""


class DonorCriticalSection:
    """One migration's critical section.

    Attributes:
        seconds: its duration, once it has been left.
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
        """Block new writes and wait for running ones; if they do not end in time, admit writes again and return False.

        Args:
            wait_for_commits: waits for cross-shard commits whose session history moves with the range.

        Raises:
            CommandError: LockTimeout, transactions were open for `TRANSACTION_SECONDS_MAX`; or an error of
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
        """Re-enter the section in a new term, blocking writes and reads.

        This need not wait, because no operation is running yet. Prepared transactions on the collection, whose
        coordinator may be on this shard and not run yet, show that the section was never complete. So the migration was
        not committed.
        """
        self._began = time.monotonic()
        await self._state.enter_section(self._reason)
        self._state.block_reads()

    async def notify_secondaries(self) -> None:
        """Make secondaries drop the placement, as MongoDB's do when ``enterCriticalSectionCounter`` changes.

        A read after the commit then makes each secondary query the primary, where it waits for the end of this section.
        """
        await self._context.store.count_critical_section(self._state.namespace)

    async def last_write_time(self) -> Timestamp:
        """Return a time not earlier than any admitted write's."""
        pong = await self._context.mongod.command("admin", {"ping": 1})
        time_of_last: Timestamp = pong["operationTime"]
        return time_of_last

    def block_reads(self) -> None:
        """Enter the second phase, which blocks reads too."""
        self._state.block_reads()

    async def refresh(self) -> None:
        """Refresh the placement after the commit. If that fails, the waiting operations refresh it themselves."""
        self._state.forget()
        try:
            await self._context.refresher.refresh_collection(self._state)
            await self._close_open_buckets()
        except CommandError as error:
            logger.warning("Could not refresh after a migration", namespace=self._state.namespace, error=str(error))

    async def _close_open_buckets(self) -> None:
        """Close the buckets that must not receive measurements of this shard any more."""
        table, moved = self._state.table, self._range
        if table is None or table.shard_for_key(table.key_pattern.key_bytes(moved.min)) == self._state.shard:
            return
        await close_open_buckets(self._context.mongod, table.collection, moved)

    def finish(self, phase: str) -> None:
        """Record the duration of a phase, for the log."""
        now = time.monotonic()
        self.phases[f"{phase}_ms"] = round((now - self._last) * 1000, 1)
        self._last = now

    def leave(self) -> None:
        """Release the waiting operations; does nothing outside the section."""
        if self.is_on and self._began is not None:
            self.seconds = time.monotonic() - self._began
            self._state.release()
