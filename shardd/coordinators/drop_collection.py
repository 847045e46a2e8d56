"""Dropping a collection, sharded or not (``_shardsvrDropCollection``).

A sharded collection leaves the catalog first and the shards after: what is still on a shard then belongs to nobody.
Operations on this shard wait meanwhile, since a new collection of the same name, unsharded, would live here.
"""

from typing import Any, ClassVar, Final
from uuid import UUID

from bson.binary import Binary

from shardd import local_collections
from shardd.changelog import log_change
from shardd.coordinators.coordinator import Coordinator
from shardd.critical_sections import held_exclusively
from shardd.dropping import drop_sharded_collection
from sharding.catalog.reads import read_routing
from wire.error_codes import ErrorCode
from wire.errors import CommandError

DROP: Final = "dropCollection"


class DropCollection(Coordinator):
    """It has no arguments; once begun, ``collInfo`` holds the UUID of a sharded collection."""

    operation_type: ClassVar[str] = "dropCollection"

    async def run(self) -> dict[str, Any]:
        """Drop the collection; one that does not exist is fine.

        Raises:
            CommandError: IllegalOperation, a collection of the cluster's own.
        """
        shard, namespace = self.shard, self.namespace
        if namespace.is_internal:
            raise CommandError(ErrorCode.IllegalOperation, f"can't drop collections of the {namespace.db} database")
        uuid = await self._sharded_uuid()
        details = {} if uuid is None else {"collectionUUID": {"uuid": Binary.from_uuid(uuid)}}
        await log_change(shard, "dropCollection.start", str(namespace), details)
        state = shard.namespace(str(namespace))
        await shard.migrations.abort_all(str(namespace), "Collection is being dropped")
        async with held_exclusively(state, {"command": "dropCollection", "ns": str(namespace)}):
            if uuid is None:
                await local_collections.drop(shard.mongod, namespace)
            else:
                with self.point_of_no_return():
                    await drop_sharded_collection(shard, namespace, uuid)
        await log_change(shard, "dropCollection", str(namespace))
        return {}

    async def _sharded_uuid(self) -> UUID | None:
        """The UUID of the collection if it is sharded, or was when the drop began."""
        persisted = self.arguments.get("collInfo")
        if persisted is not None:
            return UUID(bytes=bytes(persisted["uuid"]))
        catalog = await self.shard.catalog()
        table = await catalog.read(read_routing(str(self.namespace)))
        if table is None:
            return None
        await self.enter_phase(DROP, collInfo={"uuid": Binary.from_uuid(table.collection.uuid)})
        return table.collection.uuid
