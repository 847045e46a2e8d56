"""Holding a whole database for a change that nobody may see half made."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from shardd.critical_section import CriticalSection
from shardd.shard import Shard


@asynccontextmanager
async def database_held_exclusively(shard: Shard, db: str, reason: Mapping[str, Any]) -> AsyncIterator[None]:
    """Block operations routed by the version of a database, and wait for the writes under way, until the block ends.

    What is known of the database and its collections is thrown away at the end.
    """
    state = shard.database(db)
    section = state.critical_section = CriticalSection(reason)
    section.blocks_reads = True
    try:
        for namespace in [each for name, each in shard.namespaces.items() if name.partition(".")[0] == db]:
            await namespace.wait_writers_gone()
        yield
    finally:
        shard.forget_database(db)
        state.critical_section = None
        section.release()
