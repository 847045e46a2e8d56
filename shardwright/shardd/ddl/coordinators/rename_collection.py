"""Renaming an unsharded collection (``_shardsvrRenameCollection``)."""

from contextlib import AsyncExitStack
from typing import Any, ClassVar

from shardwright.shardd.context.changelog import log_change
from shardwright.shardd.ddl.coordinators.coordinator import Coordinator
from shardwright.shardd.local_mongod.local_collections import describe, uuid_argument
from shardwright.shardd.local_mongod.write_concern import MAJORITY
from shardwright.shardd.metadata.critical_sections import held_exclusively
from shardwright.sharding.catalog.reads import read_database, read_routing
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.versions import UNSHARDED
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


class RenameCollection(Coordinator):
    """The arguments are ``to`` (a full namespace), ``dropTarget`` and ``stayTemp``.

    mongod renames in one step, so there is nothing to persist.
    """

    operation_type: ClassVar[str] = "renameCollection"

    @property
    def locks(self) -> list[str]:
        """The locks of both databases, in alphabetical order."""
        return sorted({self.namespace.db, self._target.db})

    @property
    def _target(self) -> Namespace:
        return Namespace.parse(self.arguments["to"])

    async def run(self) -> dict[str, Any]:
        """Rename the collection.

        Raises:
            CommandError: CommandFailed, the databases have different primary shards; CommandNotSupported, one of the
                collections is sharded; NamespaceNotFound, NamespaceExists and other errors of mongod.
        """
        context, source, target = self.context, self.namespace, self._target
        target.check_creatable()
        await self._check_placement()
        await log_change(
            context, "renameCollection.start", str(source), {"source": str(source), "destination": str(target)}
        )
        async with AsyncExitStack() as sections:
            for name in sorted({str(source), str(target)}):
                reason = {"command": "renameCollection", "ns": name}
                await sections.enter_async_context(held_exclusively(context.namespace(name), reason))
            rename: dict[str, Any] = {
                "renameCollection": str(source),
                "to": str(target),
                "dropTarget": bool(self.arguments.get("dropTarget", False)),
                "stayTemp": bool(self.arguments.get("stayTemp", False)),
                "writeConcern": MAJORITY,
            }
            if source.db == target.db:
                # With UUIDs, a command that reaches mongod late spares a collection that was created since. mongod does
                # not accept them between databases, where it copies the collection.
                rename |= await self._uuids()
            await context.mongod.command("admin", rename)
        await log_change(
            context, "renameCollection.end", str(source), {"source": str(source), "destination": str(target)}
        )
        return {"collectionVersion": UNSHARDED.to_document()}

    async def _uuids(self) -> dict[str, Any]:
        """The arguments that identify the collection to rename, and the one to drop for it."""
        mongod = self.context.mongod
        uuids: dict[str, Any] = dict(uuid_argument(self.namespace, await describe(mongod, self.namespace)))
        if self.arguments.get("dropTarget", False):
            replaced = await describe(mongod, self._target)
            uuid = uuid_argument(self._target, replaced).get("collectionUUID", True)
            uuids["dropTarget"] = replaced is not None and uuid
        return uuids

    async def _check_placement(self) -> None:
        catalog = await self.context.catalog()
        for namespace in (self.namespace, self._target):
            if await catalog.read(read_routing(str(namespace))) is not None:
                raise CommandError(
                    ErrorCode.CommandNotSupported,
                    f"renaming from or to the sharded collection {namespace} is not supported",
                )
        if self._target.db != self.namespace.db:
            entry = await catalog.read(read_database(self._target.db))
            if entry is not None and entry.primary != self.context.require_identity().shard_name:
                raise CommandError(
                    ErrorCode.CommandFailed,
                    "Source and destination collections must be on the same shard, but the primary shard of "
                    f"{self._target.db} is {entry.primary}",
                )
