"""Dropping a collection, sharded or not (``_shardsvrDropCollection``).

Its migrations are stopped first, then it is removed from the catalog, then from the shards, whose data nobody owns by
then. Meanwhile operations on this shard wait, since a new collection of the same name would be created here.
"""

from typing import Any, ClassVar, Final
from uuid import UUID

from bson.binary import Binary

from shardwright.shardd.context.changelog import log_change
from shardwright.shardd.ddl.coordinators.coordinator import COLLECTION, Coordinator
from shardwright.shardd.ddl.coordinators.drop_everywhere import dropped_everywhere
from shardwright.shardd.ddl.expected_uuid import check_expected_uuid
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

DROP: Final = "dropCollection"


class DropCollection(Coordinator):
    """The argument is ``collectionUUID``, if any; once begun, ``collInfo`` has the UUID of a sharded collection."""

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
        await self.enter_phase(DROP, **({COLLECTION: collection} if collection else {}))
        # From here on its migrations are forbidden, and it may have been removed from the catalog.
        self.must_finish = self.must_finish or uuid is not None
        try:
            async with dropped_everywhere(self, namespace, uuid):
                await log_change(context, "dropCollection", str(namespace))
                await self.remove_document()
        except CommandError as error:
            # As in MongoDB, a drop that fails because of writes under way is retried until they have ended.
            self.must_finish = self.must_finish or error.code == ErrorCode.LockBusy
            raise
        return {}

    async def _sharded_uuid(self) -> UUID | None:
        """The UUID of the collection if it is sharded, or was when the drop began."""
        persisted = self.arguments.get(COLLECTION)
        if persisted is not None:
            return UUID(bytes=bytes(persisted["uuid"]))
        table = await self.read_routing()
        return None if table is None else table.collection.uuid
