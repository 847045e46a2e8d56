"""The critical section of ``movePrimary``, in which operations on the database's unsharded collections wait.

Like a chunk migration's section it lives in memory. The next primary restores it from the coordinator's document.
"""

import time
from collections.abc import Container, Mapping
from typing import Any, Final

import trio
from bson.timestamp import Timestamp

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.metadata.namespace_state import CriticalSection, NamespaceState
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

DRAIN_SECONDS_MAX: Final = 0.1
"""Time that new writes wait for running ones; after that the section is left, and tried again later."""

TRANSACTION_SECONDS_MAX: Final = 0.5
"""Total time to wait while transactions are open on the collections."""


class MoveSection:
    """One move's critical section.

    Args:
        reason: distinguishes it from every other section.
        sharded: the namespaces of sharded collections, which it does not block.

    Attributes:
        seconds: its duration, once it has been left.
    """

    def __init__(self, context: ShardContext, db: str, reason: Mapping[str, Any], sharded: Container[str] = ()) -> None:
        self.seconds = 0.0
        self._context = context
        self._db = db
        self._state = context.database(db)
        self._reason = reason
        self._sharded = sharded
        self._transaction_seconds = 0.0
        self._began = 0.0

    @property
    def is_on(self) -> bool:
        """Whether it blocks operations."""
        section = self._state.critical_section
        return section is not None and section.reason == self._reason

    async def try_block_writes(self) -> bool:
        """Block new writes and index creations, and wait for those in progress.

        Returns:
            False if they did not end in time; then neither is blocked.

        Raises:
            CommandError: LockTimeout, transactions were open for `TRANSACTION_SECONDS_MAX` in all attempts together.
        """
        with trio.move_on_after(DRAIN_SECONDS_MAX):
            await self._enter()
            await self._context.index_creations.wait_ended_of_database(self._db)
            for state in self._namespaces():
                await state.wait_writers_gone()
            return True
        has_transactions = any(state.transactions for state in self._namespaces())
        self.leave()
        if has_transactions:
            self._transaction_seconds += DRAIN_SECONDS_MAX
        if self._transaction_seconds >= TRANSACTION_SECONDS_MAX:
            raise CommandError(
                ErrorCode.LockTimeout,
                f"Failed to acquire the critical section of the database {self._db} within "
                f"{TRANSACTION_SECONDS_MAX * 1000:g} milliseconds because of open transactions",
            )
        return False

    async def restore(self) -> None:
        """Block reads and writes again in a new term or another attempt; the section may already be in effect."""
        await self._enter()
        self.block_reads()

    def block_reads(self) -> None:
        """Enter the second phase, which blocks reads too."""
        assert self._state.critical_section is not None
        self._state.critical_section.blocks_reads = True

    async def last_write_time(self) -> Timestamp:
        """Return a time not earlier than any admitted write's."""
        pong = await self._context.mongod.command("admin", {"ping": 1})
        time_of_last: Timestamp = pong["operationTime"]
        return time_of_last

    def leave(self) -> None:
        """Drop the metadata of the database, and release the waiting operations; does nothing outside the section."""
        if self.is_on:
            self.seconds = time.monotonic() - self._began
            self._context.forget_database(self._db)
            self._state.release()

    async def _enter(self) -> None:
        while (other := self._state.critical_section) is not None and other.reason != self._reason:
            await other.wait_released()
        if self._state.critical_section is None:
            self._began = time.monotonic()
            self._state.critical_section = CriticalSection(self._reason)

    def _namespaces(self) -> list[NamespaceState]:
        """Return the states of the namespaces that may have running writes."""
        prefix = f"{self._db}."
        names = self._context.namespaces
        return [each for each in names if each.namespace.startswith(prefix) and each.namespace not in self._sharded]
