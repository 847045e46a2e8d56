"""Dropping a collection (``_shardsvrDropCollection``) or a database (``_shardsvrDropDatabase``) on all shards.

The order is MongoDB's: a collection's migrations are ended, it is removed from the catalog, then from the other shards,
then from this one. Operations on this shard wait until the end, since an insert would create the collection again. A
database is dropped one sharded collection after another, then its other collections on every shard, then its entry.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Final
from uuid import UUID

from bson.binary import Binary

from shardwright.shardd.context.shard_context import ShardContext, log_change, send_to_other_shards
from shardwright.shardd.ddl.coordinator import COLLECTION, Coordinator, allow_migrations, check_expected_uuid
from shardwright.shardd.ddl.participants import database_closed, drop_database_here, drop_here
from shardwright.shardd.metadata.critical_sections import closed
from shardwright.sharding.catalog.documents import CollectionEntry
from shardwright.sharding.catalog.reads import read_database
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.versions import DatabaseVersion
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import decode_document


@asynccontextmanager
async def dropped_everywhere(coordinator: Coordinator, namespace: Namespace, uuid: UUID | None) -> AsyncIterator[None]:
    """Drop a collection in the catalog, then on all other shards, then here, where operations wait for the block's end.

    The coordinator persists its progress in the block. Otherwise the next primary could repeat the drop and remove a
    newer collection. An unsharded collection is dropped on all shards too, to remove leftovers of an earlier drop or a
    migration. May be repeated.

    Args:
        coordinator: the drop, which has persisted a transaction number for its participants.
        uuid: its UUID if it is sharded, else None.
    """
    context = coordinator.context
    if uuid is not None:
        await allow_migrations(context, namespace, uuid, coordinator.session, allow=False)
    await coordinator.migrations.end_all(str(namespace), "Collection is being dropped")
    reason = {"command": "dropCollection", "ns": str(namespace)}
    async with closed(context.namespace(str(namespace)), reason):
        await _drop_in_catalog(coordinator, namespace, uuid)
        participate = {
            "_shardsvrDropCollectionParticipant": namespace.collection,
            "fromMigrate": True,
            **coordinator.session,
        }
        await send_to_other_shards(context, namespace.db, participate)
        await drop_here(context, namespace)
        await _refresh(context, namespace)
        yield


async def _drop_in_catalog(coordinator: Coordinator, namespace: Namespace, uuid: UUID | None) -> None:
    catalog = await coordinator.context.catalog()
    if uuid is None:
        # Zones can be defined for a collection before it is sharded, or even exists.
        await catalog.commit({"_configsvrRemoveTags": str(namespace), **coordinator.session})
        return
    drop: dict[str, Any] = {
        "_configsvrCommitDropCollection": str(namespace),
        "collectionUUID": {"uuid": Binary.from_uuid(uuid)},
    }
    await catalog.commit(drop)


async def _refresh(context: ShardContext, namespace: Namespace) -> None:
    """Refresh the namespace and persist that it is not sharded."""
    state = context.namespace(str(namespace))
    state.forget()
    await context.refresher.refresh_collection(state)
    await context.writer.wait_collection_saved(state.namespace)


_DROP_COLLECTION: Final = "dropCollection"


class DropCollection(Coordinator):
    """Drops a collection.

    The argument is ``collectionUUID``, if any; once begun, ``collInfo`` has the UUID of a sharded collection.
    """

    operation_type: ClassVar[str] = "dropCollection"

    async def run(self) -> dict[str, Any]:
        """Drop the collection, if it exists.

        Raises:
            CommandError: IllegalOperation, an internal collection; CollectionUUIDMismatch; for an unsharded collection
                also the error of a shard, or that a shard could not be reached.
        """
        context, namespace = self.context, self.namespace
        if namespace.is_internal:
            raise CommandError(ErrorCode.IllegalOperation, f"can't drop collections of the {namespace.db} database")
        if self.phase is None:
            await check_expected_uuid(context.mongod, namespace, self.arguments.get("collectionUUID"))
        uuid = await self._sharded_uuid()
        collection = {} if uuid is None else {"uuid": Binary.from_uuid(uuid)}
        await log_change(
            context, "dropCollection.start", str(namespace), {"collectionUUID": collection} if collection else {}
        )
        await self.enter_phase(_DROP_COLLECTION, **({COLLECTION: collection} if collection else {}))
        # From here on its migrations are forbidden, and it may already be gone from the catalog.
        self.must_finish = self.must_finish or uuid is not None
        try:
            async with dropped_everywhere(self, namespace, uuid):
                await log_change(context, "dropCollection", str(namespace))
                await self.remove_document()
        except CommandError as error:
            # As in MongoDB, a drop that fails because of writes in progress is retried until they have ended.
            self.must_finish = self.must_finish or error.code == ErrorCode.LockBusy
            raise
        return {}

    async def _sharded_uuid(self) -> UUID | None:
        """Return the UUID of the collection if it is sharded, or was when the drop began."""
        persisted = self.arguments.get(COLLECTION)
        if persisted is not None:
            return UUID(bytes=bytes(persisted["uuid"]))
        table = await self.read_routing()
        return None if table is None else table.collection.uuid


_DROP_DATABASE: Final = "drop"


class DropDatabase(Coordinator):
    """Drops a database. The argument is the ``databaseVersion`` of the request."""

    operation_type: ClassVar[str] = "dropDatabase"
    not_compared: ClassVar[frozenset[str]] = frozenset({"databaseVersion"})  # see `may_serve`

    async def run(self) -> dict[str, Any]:
        """Drop the sharded collections one by one, then the rest of the database on every shard, then its entry."""
        context, db = self.context, self.namespace.db
        await self.enter_phase(_DROP_DATABASE)
        if await self._is_dropped():
            return {"dropped": db}
        version = {"databaseVersion": self.arguments["databaseVersion"]}
        # Our own addition: change streams look up the primary shard at the time of an event.
        await log_change(context, "dropDatabase.start", db, version)
        self.must_finish = True
        for collection in await self._sharded_collections():
            async with dropped_everywhere(self, collection.namespace, collection.uuid):
                # Participants execute each transaction number once, so the next command needs a new one.
                await self.enter_phase(_DROP_DATABASE)
        async with database_closed(context, db, {"command": "dropDatabase", "db": db}):
            # This shard first: the database exists as long as its primary shard has collections.
            await drop_database_here(context, db, is_primary_shard=True)
            participate = {"_shardsvrDropDatabaseParticipant": 1, **version, **self.session}
            replies = await send_to_other_shards(context, db, participate)
            times = [reply["$clusterTime"] for reply in replies.values() if "$clusterTime" in reply]
            # The next database of this name gets a timestamp after the last event of this one on every shard.
            await context.placement_time(max(times, key=lambda each: each["clusterTime"], default=None))
            catalog = await context.catalog()
            await catalog.commit({"_configsvrCommitDropDatabase": db, **version})
        await log_change(context, "dropDatabase", db)
        return {"dropped": db}

    async def may_serve(self, requested: Mapping[str, Any]) -> bool:
        """Whether the request is for the same database, and not for one created since, as in MongoDB."""
        mine, other = (DatabaseVersion.from_value(each["databaseVersion"]) for each in (self.arguments, requested))
        return mine.matches(other)

    async def _is_dropped(self) -> bool:
        """Whether an earlier attempt has dropped the database; a database of that name is then a new one."""
        catalog = await self.context.catalog()
        entry = await catalog.read(read_database(self.namespace.db))
        return entry is None or not entry.version.matches(DatabaseVersion.from_value(self.arguments["databaseVersion"]))

    async def _sharded_collections(self) -> list[CollectionEntry]:
        catalog = await self.context.catalog()
        prefix = f"{self.namespace.db}."
        # The slash is the character after the dot, so it bounds all names with the prefix.
        documents = await catalog.find(
            "collections", {"_id": {"$gte": prefix, "$lt": f"{self.namespace.db}/"}}, sort={"_id": 1}
        )
        decoded: list[dict[str, Any]] = [decode_document(document) for document in documents]
        return [CollectionEntry.from_document(document) for document in decoded]
