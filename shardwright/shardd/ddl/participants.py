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

**Renaming** from or to a sharded collection. Operations on both names wait between the coordinator's two commands: the
first renames the local collection, the second unblocks. In between the shards and the catalog do not agree. So the
rename is recorded (``config.localRenameParticipants``), and the next primary blocks operations again before it admits
any.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol
from uuid import UUID

import trio
from bson.binary import Binary

from shardwright.daemon.sidecar import command_sessions
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod import local_collections
from shardwright.shardd.local_mongod.local_collections import MAJORITY, ConfigCollection
from shardwright.shardd.metadata.critical_sections import (
    CRITICAL_SECTIONS,
    DDL_ON_ALL_SHARDS,
    RENAME,
    ExclusiveSection,
    SectionDriver,
    enter_together,
    supersede_reads,
)
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.shardd.metadata.refresh import LOCAL_RENAMES
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.request import Request

_ENDED: Final = "Collection is being renamed"


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
                await self._section(document["_id"], document["reason"]).restore()

    def end_term(self) -> None:
        """Do nothing: critical sections end with the term."""

    async def block(self, namespace: Namespace) -> None:
        """Wait for the writes in progress, and block new operations until `unblock`; may be repeated.

        Raises LockBusy if a write in progress did not end.
        """
        reason = _reason(namespace)
        await enter_together([self._section(str(namespace), reason)])
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
        self._section(str(namespace), _reason(namespace)).leave()

    async def abandon(self) -> None:
        """Unblock all collections of a removed shard, which receives no more commands of their coordinators."""
        for document in await self._documents.all():
            if document["reason"].get("command") == _COMMAND:
                self._section(document["_id"], document["reason"]).leave()
                await self._documents.remove(document["_id"])

    def _section(self, namespace: str, reason: Mapping[str, Any]) -> ExclusiveSection:
        return ExclusiveSection(self._context.namespace(namespace), reason, DDL_ON_ALL_SHARDS)


def _reason(namespace: Namespace) -> dict[str, str]:
    return {"command": _COMMAND, "ns": str(namespace)}


def database_closed(context: ShardContext, db: str, reason: Mapping[str, Any]) -> AbstractAsyncContextManager[None]:
    """Block operations routed by a database version until the block ends; those in progress continue.

    At the end the metadata of the database and its collections is dropped. Raises LockBusy if another such section was
    not released in time.
    """
    return SectionDriver(context.database(db), reason, forget=partial(context.forget_database, db)).closed()


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


class RenamedRanges(Protocol):
    """This shard's range deletions, as far as renames change them."""

    async def rename(self, collection_uuid: UUID, target: str) -> None:
        """Record that a collection has another name."""


class EndsMigrations(Protocol):
    """This shard's migrations, as far as renames have to end them."""

    async def end_all(self, namespace: str, reason: str) -> None:
        """End a collection's migration in either direction."""


@dataclass(frozen=True, slots=True)
class LocalRename:
    """A rename in which this shard takes part.

    Attributes:
        source: the collection's name before the rename.
        target: its name after the rename.
    """

    source: Namespace
    target: Namespace
    uuid: UUID
    stay_temp: bool

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "LocalRename":
        """Read the persisted form."""
        return cls(
            Namespace.parse(document["_id"]),
            Namespace.parse(document["to"]),
            document["sourceUUID"].as_uuid(),
            bool(document.get("stayTemp", False)),
        )

    def to_document(self) -> dict[str, Any]:
        """Return the persisted form."""
        return {
            "_id": str(self.source),
            "to": str(self.target),
            "sourceUUID": Binary.from_uuid(self.uuid),
            "stayTemp": self.stay_temp,
        }


class RenameParticipants:
    """The renames in which this shard takes part, including renames of earlier terms."""

    def __init__(self, context: ShardContext, migrations: EndsMigrations, range_deletions: RenamedRanges) -> None:
        self._context = context
        self._migrations = migrations
        self._range_deletions = range_deletions
        self._documents = ConfigCollection(context.mongod, LOCAL_RENAMES)

    async def begin_term(self, term: int, nursery: trio.Nursery) -> None:
        """Block operations on the collections of unfinished renames, before any operation is admitted."""
        for rename in [LocalRename.from_document(each) for each in await self._documents.all()]:
            for section in self._sections(rename.source, rename.target):
                await section.restore()

    def end_term(self) -> None:
        """Do nothing: critical sections end with the term."""

    async def rename(self, rename: LocalRename, *, replaces_target: bool = True) -> None:
        """Rename the local collection, and block operations on both names from then on; may be repeated.

        Args:
            replaces_target: whether to drop a collection with the new name, even if there is no local collection to
                rename.

        Raises:
            CommandError: NamespaceExists, the new name is taken, so nothing has been done; LockBusy, a running write
                did not end; or an error of mongod.
        """
        for name in (rename.source, rename.target):
            await self._migrations.end_all(str(name), _ENDED)
        await self._documents.save(rename.to_document())
        sections = self._sections(rename.source, rename.target)
        await enter_together(sections)
        for section in sections:
            await supersede_reads(section.state)
        if not replaces_target:
            await self._check_target_is_free(rename)
        await self._rename_locally(rename)
        await self._range_deletions.rename(rename.uuid, str(rename.target))

    async def _check_target_is_free(self, rename: LocalRename) -> None:
        """Undo the rename, with NamespaceExists, if a client has created the target since the coordinator's check."""
        replaced = await local_collections.describe(self._context.mongod, rename.target)
        if replaced is None or replaced.uuid == rename.uuid:
            return
        await self._documents.remove(str(rename.source))
        self._leave(rename.source, rename.target)
        raise CommandError(ErrorCode.NamespaceExists, "target namespace exists")

    async def finish(self, source: Namespace, target: Namespace) -> None:
        """Admit operations again, after the catalog has been changed; may be repeated."""
        for name in (str(source), str(target)):
            state = self._context.namespace(name)
            state.forget()
            await self._context.refresher.reread_collection(state)
            await self._context.writer.wait_collection_saved(name)
        self._context.views.forget()
        # An error of an earlier attempt may have come after mongod had removed the document.
        await self._documents.remove(str(source))
        self._leave(source, target)

    async def abandon(self) -> None:
        """End all renames on a removed shard, which receives no more commands of their coordinators."""
        for document in await self._documents.all():
            rename = LocalRename.from_document(document)
            self._leave(rename.source, rename.target)
            await self._documents.remove(str(rename.source))

    def _leave(self, source: Namespace, target: Namespace) -> None:
        for section in self._sections(source, target):
            section.leave()

    def _sections(self, source: Namespace, target: Namespace) -> list[ExclusiveSection]:
        """Return the critical sections of both names, in an order that is the same for all renames."""
        reason, names = {"command": RENAME, "from": str(source), "to": str(target)}, sorted({str(source), str(target)})
        return [ExclusiveSection(self._context.namespace(each), reason, DDL_ON_ALL_SHARDS) for each in names]

    async def _rename_locally(self, rename: LocalRename) -> None:
        mongod, source, target = self._context.mongod, rename.source, rename.target
        local, replaced = [await local_collections.describe(mongod, each) for each in (source, target)]
        if local is not None and local.uuid == rename.uuid:
            renaming = {
                "renameCollection": str(source),
                "to": str(target),
                "collectionUUID": Binary.from_uuid(rename.uuid),
                "dropTarget": False if replaced is None or replaced.uuid is None else Binary.from_uuid(replaced.uuid),
                "stayTemp": rename.stay_temp,
                "writeConcern": MAJORITY,
            }
            await mongod.command("admin", renaming)
        elif replaced is not None and replaced.uuid != rename.uuid:
            await local_collections.drop(mongod, target)
        await self._context.open_cursors.note_gone(str(source), str(target))
