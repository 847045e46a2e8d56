"""Dropping a collection or a database on this shard.

Meanwhile the namespace, or the database, is closed to new operations. Those under way are not waited for: as in MongoDB
the drop ends them, index builds are aborted, and updates end where they next yield. But an insert that was admitted
before may reach mongod after the drop, and would recreate the collection. So the drop is repeated until no such write
is left.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod import local_collections
from shardwright.shardd.local_mongod.write_concern import MAJORITY
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

_DRAIN_SECONDS: Final = 0.25
"""How long to wait for writes under way before a drop ends them, and between repeated drops."""

DROP_SECONDS_MAX: Final = 5.0
"""How long a drop that some write survives may block operations; then they are admitted, and the drop is retried."""


async def drop_here(context: ShardContext, namespace: Namespace) -> None:
    """Drop the collection with this name, whatever its UUID, while its namespace is closed.

    Raises:
        CommandError: LockBusy, a write under way did not end; or an error of mongod.
        BackendError: mongod does not answer.
    """

    async def drop() -> None:
        await local_collections.drop(context.mongod, namespace)

    await _drop_until_drained([context.namespace(str(namespace))], drop, str(namespace))
    context.views.forget()


async def drop_database_here(context: ShardContext, db: str, *, is_primary_shard: bool) -> None:
    """Drop everything in a database while it is closed.

    Collections are dropped by UUID, so that a command that reaches mongod late spares those of a recreated database.
    ``dropDatabase`` itself then drops the rest, and on the primary shard it is an event for change streams.

    Args:
        context: this shard daemon's context.
        db: the database.
        is_primary_shard: whether this is the primary shard of the database.

    Raises:
        CommandError: LockBusy, a write under way did not end; or an error of mongod.
        BackendError: mongod does not answer.
    """

    async def drop() -> None:
        for namespace in await local_collections.list_collections(context.mongod, db):
            await local_collections.drop(context.mongod, namespace)

    states = [state for state in context.namespaces if state.namespace.partition(".")[0] == db]
    await _drop_until_drained(states, drop, db)
    if is_primary_shard or await local_collections.has_collections(context.mongod, db):
        await context.mongod.command(db, {"dropDatabase": 1, "writeConcern": MAJORITY})
    context.views.forget()


async def _drop_until_drained(states: Sequence[NamespaceState], drop: Callable[[], Awaitable[None]], name: str) -> None:
    with trio.move_on_after(DROP_SECONDS_MAX):
        is_drained = False
        while not is_drained:
            is_drained = await _wait_drained(states)
            await drop()
        return
    raise CommandError(ErrorCode.LockBusy, f"writes under way kept {name} from being dropped")


async def _wait_drained(states: Sequence[NamespaceState]) -> bool:
    """Wait a short time for the writes under way; returns whether they have ended."""
    with trio.move_on_after(_DRAIN_SECONDS):
        for state in states:
            await state.wait_writers_gone()
        return True
    return False
