"""The participants' side of DDL operations: executing a coordinator's commands on this shard.

**Once.** A coordinator raises its session's transaction number before each attempt, and participants record the
executed commands (`daemon.sidecar.command_sessions`). Late commands are refused.

**Blocking** (``_shardsvrParticipantBlock``). Some changes need operations on a collection to wait on all its owners.
The coordinator blocks the collection by one command and unblocks it by another, once the catalog and the shard have
changed. The critical section is persisted as MongoDB persists it, so the next primary restores it before it admits
operations.

**Dropping.** The namespace, or the database, is closed to new operations. As in MongoDB, a drop does not wait for those
in progress but ends them: index builds are aborted, and updates end where they next yield. But an insert that was
admitted earlier may reach mongod after the drop, and would create the collection again. So the drop is repeated until
no such write is left.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import trio

from shardwright.daemon.sidecar import command_sessions
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod import local_collections
from shardwright.shardd.local_mongod.config_collection import MAJORITY, ConfigCollection
from shardwright.shardd.metadata.critical_sections import (
    CRITICAL_SECTIONS,
    HOLD_SECONDS_MAX,
    enter_exclusively,
    leave,
    restore,
)
from shardwright.shardd.metadata.namespace_state import CriticalSection, NamespaceState
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.request import Request


async def execute_once(
    context: ShardContext, request: Request, subject: str, work: Callable[[], Awaitable[None]]
) -> None:
    """Run ``work`` unless the request has been executed already. Requests about one subject are serialized.

    A request without a session is always executed.

    Args:
        subject: the collection or database of the request.
        work: executes the request; if it fails, the request may be repeated.

    Raises:
        CommandError: TransactionTooOld, the coordinator has sent a newer command; TypeMismatch or InvalidUUID, the
            session is malformed; or raised by ``work``.
    """
    async with context.ddl_locks.hold(f"participant of {subject}"):
        await command_sessions.execute_once(context.mongod, command_sessions.CommandSession.of(request), work)


READS_AND_WRITES: Final = "ReadsAndWrites"
UNBLOCK: Final = "Unblock"
"""The values of ``blockType``."""

_COMMAND: Final = "ShardSvrParticipantBlockCommand"
"""The ``command`` in the reason of these critical sections."""


class BlockedCollections:
    """The collections that coordinators have blocked on this shard."""

    def __init__(self, context: ShardContext) -> None:
        self._context = context
        self._documents = ConfigCollection(context.mongod, CRITICAL_SECTIONS)

    async def begin_term(self, term: int, nursery: trio.Nursery) -> None:
        """Restore the blocks of earlier terms before operations are admitted."""
        for document in await self._documents.all():
            if document["reason"].get("command") == _COMMAND:
                await restore(self._context.namespace(document["_id"]), document["reason"])

    def end_term(self) -> None:
        """Do nothing: critical sections end with the term."""

    async def block(self, namespace: Namespace) -> None:
        """Wait for the writes in progress, and block new operations until `unblock`; may be repeated.

        Raises LockBusy if a write in progress did not end.
        """
        reason = _reason(namespace)
        await enter_exclusively(self._context.namespace(str(namespace)), reason)
        # A recipient's section, persisted under the same key, has ended by now.
        await self._documents.save({"_id": str(namespace), "reason": reason, "blockReads": True})

    async def unblock(self, namespace: Namespace) -> None:
        """Refresh from the catalog, then admit operations again; may be repeated."""
        state = self._context.namespace(str(namespace))
        state.forget()
        await self._context.refresher.reread_collection(state)
        # Saved first, because a secondary must not read new buckets by old metadata.
        await self._context.writer.wait_collection_saved(state.namespace)
        document = await self._documents.get(str(namespace))
        if document is not None and document["reason"] == _reason(namespace):
            await self._documents.remove(str(namespace))
        leave(state, _reason(namespace))

    async def abandon(self) -> None:
        """Unblock all collections of a removed shard, which receives no more commands of their coordinators."""
        for document in await self._documents.all():
            if document["reason"].get("command") == _COMMAND:
                await self._documents.remove(document["_id"])
                leave(self._context.namespace(document["_id"]), document["reason"])


def _reason(namespace: Namespace) -> dict[str, str]:
    return {"command": _COMMAND, "ns": str(namespace)}


@asynccontextmanager
async def database_closed(context: ShardContext, db: str, reason: Mapping[str, Any]) -> AsyncIterator[None]:
    """Block operations routed by a database version until the block ends; those in progress continue.

    At the end the metadata of the database and its collections is dropped. Raises LockBusy if another such section was
    not released in time.
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


_DRAIN_SECONDS: Final = 0.25
"""The wait for writes in progress before a drop ends them, and between repeated drops."""

DROP_SECONDS_MAX: Final = 5.0
"""The longest time that a repeated drop blocks operations; then they are admitted, and the drop is retried."""


async def drop_here(context: ShardContext, namespace: Namespace) -> None:
    """Drop the collection with this name, with any UUID, while its namespace is closed.

    Raises LockBusy if a write in progress did not end.
    """

    async def drop() -> None:
        await local_collections.drop(context.mongod, namespace)

    await _drop_until_drained([context.namespace(str(namespace))], drop, str(namespace))
    await context.open_cursors.note_gone(str(namespace))
    context.views.forget()


async def drop_database_here(context: ShardContext, db: str, *, is_primary_shard: bool) -> None:
    """Drop everything in a database while it is closed, or raise LockBusy if a write in progress did not end.

    Collections are dropped by UUID, so a command that reaches mongod late does not affect a recreated database.
    ``dropDatabase`` itself then drops the rest, and on the primary shard it is an event for change streams.
    """

    dropped: set[str] = set()

    async def drop() -> None:
        for namespace in await local_collections.list_collections(context.mongod, db):
            await local_collections.drop(context.mongod, namespace)
            dropped.add(str(namespace))

    states = [state for state in context.namespaces if state.namespace.partition(".")[0] == db]
    await _drop_until_drained(states, drop, db)
    if is_primary_shard or await local_collections.has_collections(context.mongod, db):
        await context.mongod.command(db, {"dropDatabase": 1, "writeConcern": MAJORITY})
    await context.open_cursors.note_gone(*dropped)
    context.views.forget()


async def _drop_until_drained(states: Sequence[NamespaceState], drop: Callable[[], Awaitable[None]], name: str) -> None:
    with trio.move_on_after(DROP_SECONDS_MAX):
        is_drained = False
        while not is_drained:
            is_drained = await _wait_drained(states)
            await drop()
        return
    raise CommandError(ErrorCode.LockBusy, f"running writes kept {name} from being dropped")


async def _wait_drained(states: Sequence[NamespaceState]) -> bool:
    """Wait a short time for the writes in progress; return whether they have ended."""
    with trio.move_on_after(_DRAIN_SECONDS):
        for state in states:
            await state.wait_writers_gone()
        return True
    return False
