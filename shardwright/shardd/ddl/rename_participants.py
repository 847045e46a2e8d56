"""Each shard's part in a rename from or to a sharded collection.

Operations on both names wait between the coordinator's two commands: the first renames the local collection, the second
unblocks. In between the shards and the catalog do not agree. So the rename is recorded
(``config.localRenameParticipants``), and the next primary blocks operations again before it admits any.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol
from uuid import UUID

import trio
from bson.binary import Binary

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod import local_collections
from shardwright.shardd.local_mongod.config_collection import MAJORITY, ConfigCollection
from shardwright.shardd.metadata.critical_sections import enter_exclusively, leave, restore
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.shardd.metadata.renamed import RENAME, supersede_reads
from shardwright.shardd.metadata.secondary_metadata import LOCAL_RENAMES
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

_ENDED: Final = "Collection is being renamed"


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

    @property
    def reason(self) -> dict[str, str]:
        """The reason of its critical sections."""
        return {"command": RENAME, "from": str(self.source), "to": str(self.target)}


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
            for state in self._states(rename):
                await restore(state, rename.reason)

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
        for state in self._states(rename):
            await enter_exclusively(state, rename.reason)
        for state in self._states(rename):
            await supersede_reads(state)
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
        for state in self._states(rename):
            leave(state, rename.reason)
        raise CommandError(ErrorCode.NamespaceExists, "target namespace exists")

    async def finish(self, source: Namespace, target: Namespace) -> None:
        """Admit operations again, after the catalog has been changed; may be repeated."""
        document = await self._documents.get(str(source))
        for name in (str(source), str(target)):
            state = self._context.namespace(name)
            state.forget()
            await self._context.refresher.reread_collection(state)
            await self._context.writer.wait_collection_saved(name)
        self._context.views.forget()
        await self._documents.remove(str(source))
        if document is not None:
            rename = LocalRename.from_document(document)
            for state in self._states(rename):
                leave(state, rename.reason)

    async def abandon(self) -> None:
        """End all renames on a removed shard, which receives no more commands of their coordinators."""
        for document in await self._documents.all():
            rename = LocalRename.from_document(document)
            await self._documents.remove(str(rename.source))
            for state in self._states(rename):
                leave(state, rename.reason)

    def _states(self, rename: LocalRename) -> list[NamespaceState]:
        """Return the states of both names, in an order that is the same for all renames."""
        return [self._context.namespace(name) for name in sorted({str(rename.source), str(rename.target)})]

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
