"""Renaming a sharded or unsharded collection (``_shardsvrRenameCollection``), possibly over another one.

If neither collection is sharded, only this shard has them, and its mongod renames in one step. Otherwise all shards
rename, then the catalog is changed, and operations wait from the first rename to the last
(`shardd.ddl.participants`).
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Final
from uuid import UUID

from bson.binary import Binary

from shardwright.shardd.context.shard_context import (
    ShardContext,
    all_shard_ids,
    log_change,
    send_to_shard,
    send_to_shards,
)
from shardwright.shardd.ddl.coordinator import Coordinator, allow_migrations, check_expected_uuid, new_session
from shardwright.shardd.local_mongod.local_collections import MAJORITY, describe, uuid_argument
from shardwright.shardd.metadata.critical_sections import ExclusiveSection, held_exclusively
from shardwright.sharding.catalog.reads import read_database, read_routing
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.versions import UNSHARDED
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("shardd.ddl.rename")


async def check_rename(
    context: ShardContext,
    source: Namespace,
    target: Namespace,
    source_table: RoutingTable | None,
    target_table: RoutingTable | None,
    *,
    drops_target: bool,
) -> None:
    """Refuse an invalid rename before anything is changed. mongod checks renames of unsharded collections.

    Args:
        context: the context of the source database's primary shard.
        source: the collection's name.
        target: its new name.
        source_table: the routing table of the collection; None if it is not sharded.
        target_table: the routing table of the collection with the new name; None if it is not sharded.
        drops_target: whether the rename may replace a collection with the new name.

    Raises:
        CommandError: CommandFailed, the databases have different primary shards, or differ although a collection is
            sharded; NamespaceNotFound; NamespaceExists; CommandNotSupportedOnView; InvalidNamespace; IllegalOperation,
            the collection holds the buckets of a time-series collection.
    """
    if target.db != source.db:
        await _check_databases(context, target, sharded=source_table or target_table)
    if target_table is not None and not drops_target:
        raise CommandError(
            ErrorCode.NamespaceExists, f"Sharded target collection {target} exists but dropTarget is not set"
        )
    if source_table is None and target_table is None:
        return await _check_zones(context, target, target_table)
    if source.is_time_series_buckets:
        raise CommandError(ErrorCode.IllegalOperation, "Renaming system.buckets collections is not allowed")
    if source_table is not None:
        target.check_shardable()
    local, replaced = [await describe(context.mongod, each) for each in (source, target)]
    if local is None or local.uuid is None:
        raise CommandError(ErrorCode.NamespaceNotFound, f"Collection {source} doesn't exist.")
    if replaced is not None and replaced.kind != "collection":
        raise CommandError(ErrorCode.CommandNotSupportedOnView, f"a view already exists with that name: {target}")
    if replaced is not None and not drops_target:
        raise CommandError(ErrorCode.NamespaceExists, "target namespace exists")
    await _check_zones(context, target, target_table)


async def _check_databases(context: ShardContext, target: Namespace, *, sharded: RoutingTable | None) -> None:
    if sharded is not None:
        raise CommandError(
            ErrorCode.CommandFailed,
            f"Source and destination collections must be on the same database because {sharded.namespace} is sharded.",
        )
    if not target.is_internal:  # collections of the cluster's own databases are on the config servers
        entry = await (await context.catalog()).read(read_database(target.db))
        if entry is None or entry.primary == context.require_identity().shard_name:
            return
    raise CommandError(ErrorCode.CommandFailed, "Source and destination collections must be on same shard")


async def _check_zones(context: ShardContext, target: Namespace, table: RoutingTable | None) -> None:
    """Refuse zones of an unsharded target: the renamed collection would inherit them."""
    if table is None and await (await context.catalog()).find("tags", {"ns": str(target)}):
        raise CommandError(
            ErrorCode.CommandFailed,
            f"Can't rename to target collection {target} because it must not have associated tags",
        )


FREEZE_MIGRATIONS: Final = "freezeMigrations"
FREEZE_TARGET: Final = "freezeTargetMigrations"
RENAME: Final = "blockCRUDAndRename"
RENAME_METADATA: Final = "renameMetadata"
UNBLOCK: Final = "unblockCRUD"
GIVE_UP: Final = "allowMigrations"


class RenameCollection(Coordinator):
    """Renames a collection.

    The arguments are ``to`` (a full namespace), ``dropTarget``, ``stayTemp`` and the UUIDs that the client expects.
    Once begun, ``sourceUUID`` is the collection's UUID. If either collection is sharded, ``sourceIsSharded`` says
    whether the source is, and ``targetUUID`` belongs to a sharded collection that has the new name.
    """

    operation_type: ClassVar[str] = "renameCollection"

    @property
    def locks(self) -> list[str]:
        """The locks of both databases, then of both collections."""
        names = (self.namespace, self._target)
        return [*sorted({name.db for name in names}), *sorted({str(name) for name in names})]

    @asynccontextmanager
    async def entered(self) -> AsyncIterator[None]:
        """Exclude index creations on either collection, because the shards rename at different moments.

        Raises BackgroundOperationInProgressForNamespace if one is being created.
        """
        names = (str(self.namespace), str(self._target))
        async with self.context.index_creations.kept_out(names, must_enter=self.must_finish):
            yield

    @property
    def _target(self) -> Namespace:
        return Namespace.parse(self.arguments["to"])

    async def may_serve(self, requested: Mapping[str, Any]) -> bool:
        """Whether the request may be for the renamed collection, or repeats the request to rename it.

        Operations are admitted before the rename has been recorded, or has ended on all shards. So a client may have
        created another collection of the old name, which has to be renamed too.
        """
        renamed = self.arguments.get("sourceUUID")
        if renamed is None:  # nothing has been renamed
            return True
        present = await describe(self.context.mongod, self.namespace)
        return present is None or present.uuid == UUID(bytes=bytes(renamed))

    async def run(self) -> dict[str, Any]:
        """Rename the collection.

        Raises:
            CommandError: CollectionUUIDMismatch; CommandFailed, the databases have different primary shards, or differ
                although a collection is sharded; NamespaceNotFound, NamespaceExists and other errors of mongod.
        """
        if self.phase is None:
            self._target.check_creatable()
            source, target = await self._table(self.namespace), await self._table(self._target)
            drops = bool(self.arguments.get("dropTarget", False))
            await check_rename(self.context, self.namespace, self._target, source, target, drops_target=drops)
            for name, expected in ((self.namespace, "expectedSourceUUID"), (self._target, "expectedTargetUUID")):
                await check_expected_uuid(self.context.mongod, name, self.arguments.get(expected))
            await self._log("renameCollection.start")
            if source is None and target is None:
                await self._rename_here()
                await self._record()
                await self._log("renameCollection.end")
                return {"collectionVersion": UNSHARDED.to_document()}
            await self._begin(source, target)
        # From here on migrations are forbidden, and only the whole change allows them again.
        self.must_finish = True
        await self._rename_everywhere()
        await self._log("renameCollection.end")
        table = await self._table(self._target)
        return {"collectionVersion": (table.collection_version if table else UNSHARDED).to_document()}

    async def _table(self, namespace: Namespace) -> RoutingTable | None:
        return await (await self.context.catalog()).read(read_routing(str(namespace)))

    async def _log(self, what: str) -> None:
        source, target = str(self.namespace), str(self._target)
        await log_change(self.context, what, source, {"source": source, "destination": target})

    async def _record(self) -> None:
        """Write a changelog entry through the config servers for a rename that does not change the catalog."""
        try:
            await self._rename_in_catalog(new_session())
        except CommandError as error:
            logger.warning("Could not record a rename", namespace=str(self.namespace), error=str(error))

    # Sharded

    async def _begin(self, source: RoutingTable | None, target: RoutingTable | None) -> None:
        local = await describe(self.context.mongod, self.namespace)
        assert local is not None  # `check_rename` has seen it
        assert local.uuid is not None
        uuid = local.uuid if source is None else source.collection.uuid
        replaced = {} if target is None else {"targetUUID": Binary.from_uuid(target.collection.uuid)}
        sharded = {"sourceIsSharded": source is not None, "targetIsSharded": target is not None}
        await self.enter_phase(FREEZE_MIGRATIONS, sourceUUID=Binary.from_uuid(uuid), **sharded, **replaced)

    async def _rename_everywhere(self) -> None:
        """Continue from the current phase to the end.

        Raises NamespaceExists if a collection of the new name was created after the checks, and must not be replaced.
        """
        if self.phase == GIVE_UP:
            await self._give_up()
        if self.phase == FREEZE_MIGRATIONS:
            if self.arguments["sourceIsSharded"]:
                await self._allow_migrations(self.namespace, "sourceUUID", allow=False)
            await self.enter_phase(FREEZE_TARGET)
        if self.phase == FREEZE_TARGET:
            if self.arguments["targetIsSharded"]:
                await self._allow_migrations(self._target, "targetUUID", allow=False)
            await self.enter_phase(RENAME)
        if self.phase == RENAME:
            await self._rename_here_first()
            await self._send_to_all("_shardsvrRenameCollectionParticipant")
            await self.enter_phase(RENAME_METADATA)
        if self.phase == RENAME_METADATA:
            await self._rename_in_catalog(self.session)
            await self.enter_phase(UNBLOCK)
        await self._send_to_all("_shardsvrRenameCollectionParticipantUnblock")

    async def _allow_migrations(self, namespace: Namespace, uuid: str, *, allow: bool) -> None:
        await allow_migrations(
            self.context, namespace, UUID(bytes=bytes(self.arguments[uuid])), self.session, allow=allow
        )

    async def _rename_here_first(self) -> None:
        """Rename on this shard first, because no other shard can get an unsharded collection of the new name.

        Raises NamespaceExists if this shard has got one.
        """
        if self.arguments.get("dropTarget"):
            return
        me = self.context.require_identity().shard_name
        command = self._participation("_shardsvrRenameCollectionParticipant")
        try:
            await send_to_shard(self.context, me, self.namespace.db, {**command, "replacesTarget": False})
        except CommandError as error:
            if error.code != ErrorCode.NamespaceExists:
                raise
            await self.enter_phase(GIVE_UP)
            await self._give_up()

    async def _give_up(self) -> None:
        """Allow migrations again, because nothing has been renamed, and raise NamespaceExists."""
        if self.arguments["sourceIsSharded"]:
            await self._allow_migrations(self.namespace, "sourceUUID", allow=True)
        self.must_finish = False
        raise CommandError(ErrorCode.NamespaceExists, "target namespace exists")

    async def _send_to_all(self, participate: str) -> None:
        command = self._participation(participate)
        await send_to_shards(self.context, await all_shard_ids(self.context), self.namespace.db, command)

    def _participation(self, participate: str) -> dict[str, Any]:
        return {
            participate: self.namespace.collection,
            "to": str(self._target),
            "sourceUUID": self.arguments["sourceUUID"],
            "stayTemp": bool(self.arguments.get("stayTemp", False)),
            **self.session,
        }

    async def _rename_in_catalog(self, session: Mapping[str, Any]) -> None:
        names = {"_configsvrRenameCollectionMetadata": str(self.namespace), "to": str(self._target)}
        rename: dict[str, Any] = {**names, **session}
        if self.arguments.get("sourceIsSharded"):
            rename["optFromCollection"] = {"uuid": self.arguments["sourceUUID"]}
        if self.arguments.get("targetIsSharded"):
            rename["targetUUID"] = self.arguments["targetUUID"]
        await (await self.context.catalog()).commit(rename)

    # Unsharded

    async def _rename_here(self) -> None:
        """Rename an unsharded collection in one step, possibly over another unsharded one."""
        context, source, target = self.context, self.namespace, self._target
        names = sorted({str(source), str(target)})
        reasons = [{"command": "renameCollection", "ns": name} for name in names]
        states = [context.namespace(name) for name in names]
        async with held_exclusively(*map(ExclusiveSection, states, reasons)):
            local = await describe(context.mongod, source)
            if local is not None and local.uuid is not None:
                self.arguments["sourceUUID"] = Binary.from_uuid(local.uuid)
            rename: dict[str, Any] = {
                "renameCollection": str(source),
                "to": str(target),
                "dropTarget": bool(self.arguments.get("dropTarget", False)),
                "stayTemp": bool(self.arguments.get("stayTemp", False)),
                "writeConcern": MAJORITY,
            }
            if source.db == target.db:
                # With UUIDs, a command that reaches mongod late cannot affect a newer collection. mongod does not
                # accept them between databases, where it copies the collection.
                rename |= {**uuid_argument(source, local), **await self._uuid_of_target()}
            await context.mongod.command("admin", rename)

    async def _uuid_of_target(self) -> dict[str, Any]:
        """Return the argument that identifies the collection to replace."""
        if not self.arguments.get("dropTarget", False):
            return {}
        replaced = await describe(self.context.mongod, self._target)
        uuid = uuid_argument(self._target, replaced).get("collectionUUID", True)
        return {"dropTarget": replaced is not None and uuid}
