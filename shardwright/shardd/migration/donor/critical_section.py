"""The donor's critical section: it blocks writes to the collection, and during the commit reads as well.

As in MongoDB it lives in memory: the next primary re-enters it because of the migration's persisted state
(`DonorService.recover`).
"""

import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio
from bson.timestamp import Timestamp

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.migration.documents import MigrationCoordinatorDocument
from shardwright.shardd.migration.donor.open_buckets import close_open_buckets
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("shardd.migration.donor")

DRAIN_SECONDS_MAX: Final = 0.1
"""How long new writes wait for those under way; if that takes longer, the section is retried later."""

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
        """Block new writes and wait for those under way; False if they did not end in time, and writes go on.

        Args:
            wait_for_commits: waits for those of which the history goes with the range, but other shards have a part.

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

        It waits for nothing: no operation is under way yet. Prepared transactions inside the collection, whose
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
        """A time not earlier than that of any admitted write.

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
