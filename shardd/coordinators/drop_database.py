"""Dropping a database with all its collections, sharded or not (``_shardsvrDropDatabase``)."""

from typing import Any, ClassVar, Final

import bson

from shardd.changelog import log_change
from shardd.coordinators.coordinator import Coordinator
from shardd.critical_sections import held_exclusively
from shardd.database_sections import database_held_exclusively
from shardd.dropping import drop_sharded_collection
from shardd.other_shards import all_shard_ids, send_to_shard, send_to_shards
from sharding.catalog.collection_entry import CollectionEntry
from wire.rawbson import VALUE_CODEC

DROP: Final = "drop"


class DropDatabase(Coordinator):
    """Its argument is the ``databaseVersion`` that the request came with."""

    operation_type: ClassVar[str] = "dropDatabase"

    async def run(self) -> dict[str, Any]:
        """Drop the sharded collections one by one, then what is left of the database on every shard, then its entry."""
        shard, db = self.shard, self.namespace.db
        await self.enter_phase(DROP)
        await log_change(shard, "dropDatabase.start", db)
        self.must_finish = True
        for collection in await self._sharded_collections():
            state = shard.namespace(str(collection.namespace))
            await shard.migrations.abort_all(str(collection.namespace), "Database is being dropped")
            async with held_exclusively(state, {"command": "dropDatabase", "db": db}):
                await drop_sharded_collection(shard, collection.namespace, collection.uuid)
        async with database_held_exclusively(shard, db, {"command": "dropDatabase", "db": db}):
            me = shard.require_identity().shard_name
            participate = {"_shardsvrDropDatabaseParticipant": 1}
            # This shard first: as long as it has collections, the database is there.
            await send_to_shard(shard, me, db, participate)
            others = [shard_id for shard_id in await all_shard_ids(shard) if shard_id != me]
            await send_to_shards(shard, others, db, participate)
            catalog = await shard.catalog()
            await catalog.commit(
                {"_configsvrCommitDropDatabase": db, "databaseVersion": self.arguments["databaseVersion"]}
            )
        await log_change(shard, "dropDatabase", db)
        return {"dropped": db}

    async def _sharded_collections(self) -> list[CollectionEntry]:
        catalog = await self.shard.catalog()
        prefix = f"{self.namespace.db}."
        # The first name after all names with the prefix is that with the next character for the dot.
        documents = await catalog.find(
            "collections", {"_id": {"$gte": prefix, "$lt": f"{self.namespace.db}/"}}, sort={"_id": 1}
        )
        decoded: list[dict[str, Any]] = [bson.decode(document, codec_options=VALUE_CODEC) for document in documents]
        return [CollectionEntry.from_document(document) for document in decoded]
