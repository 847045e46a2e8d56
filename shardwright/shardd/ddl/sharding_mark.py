"""The mark in the oplog by which change streams show when a collection was sharded.

A mongod writes events of its own commands only, and has none for sharding. So a ``collMod`` that changes nothing marks
the time. The changelog has an entry from before and one from after it, between which the routers take it for what it
is: users' commands cannot come between, since a coordinator holds the lock of the database.
"""

from typing import Final

from bson.binary import Binary
from bson.timestamp import Timestamp

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.sharding.sharded_collection import ShardedCollection
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("shardd.ddl")

_WAIT_MS_MAX: Final = 2000
"""How long the mark may wait for open transactions on the collection, while operations on it wait for the mark."""


async def present_time(mongod: LocalMongod) -> Timestamp:
    """The time of the last entry in the oplog."""
    time: Timestamp = (await mongod.command("admin", {"ping": 1}))["operationTime"]
    return time


async def mark_sharded(mongod: LocalMongod, collection: ShardedCollection) -> None:
    """Write the mark; if that is not possible now, change streams do not show that the collection was sharded."""
    namespace = collection.namespace
    mark = {
        "collMod": namespace.collection,
        "collectionUUID": Binary.from_uuid(collection.uuid),
        "maxTimeMS": _WAIT_MS_MAX,
    }
    try:
        await mongod.command(namespace.db, mark)
    except CommandError as error:
        logger.warning("Change streams will not show the sharding", namespace=str(namespace), error=str(error))
