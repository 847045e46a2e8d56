"""Writing the counts of each minute to the config servers.

A shard daemon writes its own documents, through its client of the config servers. If config daemons polled all shards
each minute, that would need a command of its own and lose the minutes of unreachable shards. Lost documents are not
written again, because the counts are estimates.
"""

from datetime import UTC, datetime
from random import Random
from typing import Any, Final

import trio

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.key_statistics.key_counter import KeyCounter
from shardwright.shardd.key_statistics.parameters import KeyStatisticsParameters
from shardwright.sharding.key_statistics import (
    HISTORY,
    HISTORY_SECONDS,
    MINUTE_SECONDS,
    MINUTES,
    KeyRange,
    added,
    collections_of,
    compressed,
)
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("shardd.key_statistics")

_MINUTES_OF_HISTORY: Final = HISTORY_SECONDS // MINUTE_SECONDS


class KeyStatistics:
    """The key statistics of this shard daemon."""

    def __init__(self, context: ShardContext, random: Random) -> None:
        self.parameters = KeyStatisticsParameters()
        self.counter = KeyCounter(random)
        self._context = context
        self._minutes: list[list[KeyRange]] = []
        self._history_began = datetime.now(UTC)
        self._may_write: bool | None = None

    async def run(self) -> None:
        """Write the counts of each minute until cancelled."""
        while True:
            began = datetime.now(UTC)
            await trio.sleep(self.parameters.interval_seconds)
            await self.end_minute(began)

    async def end_minute(self, began: datetime) -> None:
        """Write the counts since ``began``, and every tenth time the history."""
        self.counter.is_enabled = self.parameters.is_enabled
        ranges = compressed(self.counter.take())
        if not self._minutes:
            self._history_began = began
        self._minutes.append(ranges)
        await self._write(MINUTES, began, self.parameters.interval_seconds, ranges)
        if len(self._minutes) >= _MINUTES_OF_HISTORY:
            minutes, self._minutes = self._minutes, []
            seconds = self.parameters.interval_seconds * len(minutes)
            await self._write(HISTORY, self._history_began, seconds, added(minutes))

    async def _write(self, collection: str, began: datetime, seconds: float, ranges: list[KeyRange]) -> None:
        if not ranges or self._context.identity is None:
            return
        document: dict[str, Any] = {
            "at": began,
            "seconds": seconds,
            "shard": self._context.identity.shard_name,
            "member": self._context.options.address,
            "collections": collections_of(ranges),
        }
        try:
            catalog = await self._context.catalog()
            if self._may_write is None:
                found = await catalog.command(
                    {"listCollections": 1, "filter": {"name": MINUTES, "options.capped": True}}, db="config"
                )
                # MongoDB's config servers do not have it; an insert would create it without a size limit.
                self._may_write = bool(found["cursor"]["firstBatch"])
            if self._may_write:
                await catalog.command({"insert": collection, "documents": [document]}, db="config")
        except (CommandError, BackendError) as error:
            logger.info("Could not write key statistics", error=str(error))
