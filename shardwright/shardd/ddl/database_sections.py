"""The critical section of a database that is being dropped."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.metadata.critical_section import CriticalSection
from shardwright.shardd.metadata.critical_sections import HOLD_SECONDS_MAX
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


@asynccontextmanager
async def database_closed(context: ShardContext, db: str, reason: Mapping[str, Any]) -> AsyncIterator[None]:
    """Block operations routed by a database version until the block ends; those under way go on.

    The metadata of the database and its collections is forgotten at the end.

    Raises:
        CommandError: LockBusy, another such section was not released in time.
    """
    state = context.database(db)
    with trio.move_on_after(HOLD_SECONDS_MAX) as patience:
        while (other := state.critical_section) is not None:
            await other.wait_released()
    if patience.cancelled_caught:
        raise CommandError(ErrorCode.LockBusy, f"Failed to acquire the critical section of the database {db}")
    section = state.critical_section = CriticalSection(reason)
    section.blocks_reads = True
    try:
        yield
    finally:
        context.forget_database(db)
        if state.critical_section is section:
            state.critical_section = None
        section.release()
