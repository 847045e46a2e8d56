"""The donor's critical section: from here to the commit nobody writes to the collection, and at last nobody reads it.

It lives in memory, as MongoDB's: the next primary puts it back by what is persisted of the migration (`recovery`).
"""

import time
from typing import Any, Final

import trio
from bson.timestamp import Timestamp

from shardwright.daemon.logs import get_logger
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.migration.documents import MigrationCoordinatorDocument
from shardwright.wire.errors import CommandError

logger = get_logger("shardd.migration.donor")

DRAIN_SECONDS_MAX: Final = 0.1
"""How long new writes wait for a write under way; if that takes longer, the section is tried again later."""


class DonorCriticalSection:
    """The section of one migration.

    Args:
        context: of this shard daemon.
        coordinator: the migration.

    Attributes:
        seconds: how long it was on, once it has been left.
        phases: how many milliseconds each part of it took, see `finish`.
    """

    def __init__(self, context: ShardContext, coordinator: MigrationCoordinatorDocument) -> None:
        self.seconds = 0.0
        self.phases: dict[str, float] = {}
        self._context = context
        self._state = context.namespace(coordinator.namespace)
        # The session makes it differ from every other section.
        self._reason: dict[str, Any] = {
            "command": "moveChunk",
            "fromShard": coordinator.donor,
            "toShard": coordinator.recipient,
            "sessionId": coordinator.session_id,
        }
        self._began: float | None = None
        self._last = 0.0

    @property
    def is_on(self) -> bool:
        """Whether operations wait for it."""
        section = self._state.critical_section
        return section is not None and section.reason == self._reason

    async def try_block_writes(self) -> bool:
        """Let no new write begin and wait for those under way; whether they ended in time. If not, writes go on."""
        with trio.move_on_after(DRAIN_SECONDS_MAX):
            self._began = self._last = time.monotonic()
            await self._state.block_writes(self._reason)
            self.finish("drain")
            return True
        self.leave()
        return False

    async def put_back(self) -> None:
        """Begin it in a new term: writes and reads wait. No operation is under way yet that could be in the way."""
        self._began = time.monotonic()
        await self._state.block_writes(self._reason)
        self._state.block_reads()

    async def tell_secondaries(self) -> None:
        """Have secondaries forget the placement, as MongoDB's do when ``enterCriticalSectionCounter`` changes.

        A read at a time after the commit finds on every secondary that it has to ask the primary, and waits there
        for the end of this section.

        Raises:
            CommandError: mongod refuses.
            BackendError: mongod does not answer.
        """
        await self._context.store.count_critical_section(self._state.namespace)

    async def last_write_time(self) -> Timestamp:
        """A time that is not before that of any write that was let in.

        Raises:
            CommandError: mongod refuses.
            BackendError: mongod does not answer.
        """
        pong = await self._context.mongod.command("admin", {"ping": 1})
        time_of_last: Timestamp = pong["operationTime"]
        return time_of_last

    def block_reads(self) -> None:
        """The second phase: nobody reads either."""
        self._state.block_reads()

    async def refresh(self) -> None:
        """Learn the placement after the commit. If that is not possible, the operations that wait will see to it."""
        self._state.forget()
        try:
            await self._context.refresher.refresh_collection(self._state)
        except CommandError as error:
            logger.warning("Could not refresh after a migration", namespace=self._state.namespace, error=str(error))

    def finish(self, phase: str) -> None:
        """A part of it is done; its time is for the log."""
        now = time.monotonic()
        self.phases[f"{phase}_ms"] = round((now - self._last) * 1000, 1)
        self._last = now

    def leave(self) -> None:
        """Let all operations go on, if they were kept waiting."""
        if self.is_on and self._began is not None:
            self.seconds = time.monotonic() - self._began
            self._state.release()
