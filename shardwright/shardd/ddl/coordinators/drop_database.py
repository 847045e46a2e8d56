"""Dropping a database with all its collections, sharded and unsharded (``_shardsvrDropDatabase``)."""

from typing import Any, ClassVar, Final

from shardwright.shardd.context.changelog import log_change
from shardwright.shardd.context.other_shards import send_to_other_shards
from shardwright.shardd.ddl.coordinators.coordinator import Coordinator
from shardwright.shardd.ddl.coordinators.drop_everywhere import dropped_everywhere
from shardwright.shardd.ddl.database_sections import database_closed
from shardwright.shardd.ddl.dropping import drop_database_here
from shardwright.sharding.catalog.collection_entry import CollectionEntry
from shardwright.sharding.catalog.reads import read_database
from shardwright.sharding.versions import DatabaseVersion
from shardwright.wire.rawbson import decode_document

DROP: Final = "drop"


class DropDatabase(Coordinator):
    """Its argument is the ``databaseVersion`` of the request."""

    operation_type: ClassVar[str] = "dropDatabase"

    async def run(self) -> dict[str, Any]:
        """Drop the sharded collections one by one, then the rest of the database on every shard, then its entry."""
        context, db = self.context, self.namespace.db
        await self.enter_phase(DROP)
        if await self._is_dropped():
            return {"dropped": db}
        version = {"databaseVersion": self.arguments["databaseVersion"]}
        # The version is an addition of ours: change streams look up which shard was primary at the time of an event.
        await log_change(context, "dropDatabase.start", db, version)
        self.must_finish = True
        for collection in await self._sharded_collections():
            async with dropped_everywhere(self, collection.namespace, collection.uuid):
                # Participants execute each transaction number once, so the next command needs a new one.
                await self.enter_phase(DROP)
        async with database_closed(context, db, {"command": "dropDatabase", "db": db}):
            # This shard first: the database exists as long as its primary shard has collections.
            await drop_database_here(context, db, is_primary_shard=True)
            participate = {"_shardsvrDropDatabaseParticipant": 1, **version, **self.session}
            replies = await send_to_other_shards(context, db, participate)
            times = [reply["$clusterTime"] for reply in replies.values() if "$clusterTime" in reply]
            # The next database of that name will have a timestamp after the last event of this one, on every shard.
            await context.placement_time(max(times, key=lambda each: each["clusterTime"], default=None))
            catalog = await context.catalog()
            await catalog.commit({"_configsvrCommitDropDatabase": db, **version})
        await log_change(context, "dropDatabase", db)
        return {"dropped": db}

    async def _is_dropped(self) -> bool:
        """Whether an earlier attempt has already dropped it, so that a database of that name is a new one."""
        catalog = await self.context.catalog()
        entry = await catalog.read(read_database(self.namespace.db))
        return entry is None or not entry.version.matches(DatabaseVersion.from_value(self.arguments["databaseVersion"]))

    async def _sharded_collections(self) -> list[CollectionEntry]:
        catalog = await self.context.catalog()
        prefix = f"{self.namespace.db}."
        # The slash is the character after the dot, so this is the end of all names with the prefix.
        documents = await catalog.find(
            "collections", {"_id": {"$gte": prefix, "$lt": f"{self.namespace.db}/"}}, sort={"_id": 1}
        )
        decoded: list[dict[str, Any]] = [decode_document(document) for document in documents]
        return [CollectionEntry.from_document(document) for document in decoded]
