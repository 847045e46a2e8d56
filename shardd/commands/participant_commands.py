"""What coordinators have the shards do that take part in a change."""

from typing import Any
from uuid import UUID

from shardd import local_collections
from shardd.arguments import collection_argument, document_argument, required_argument
from shardd.catalog import MAJORITY
from shardd.registry import command
from shardd.shard import Shard
from wire.request import Request


@command("_shardsvrCreateCollectionParticipant")
async def create_collection_participant(shard: Shard, request: Request) -> dict[str, Any]:
    """Have a collection of a given UUID with given indexes.

    Raises:
        CommandError: InvalidUUID, another collection of that name exists.
    """
    namespace = collection_argument(request)
    document_argument(request, b"options")
    uuid = UUID(bytes=bytes(required_argument(request, b"collectionUUID")))
    options = {name: value for name, value in request.get(b"options").items() if name != "uuid"}
    mongod = shard.mongod
    await local_collections.create_with_uuid(mongod, namespace, uuid, options, request.get(b"idIndex"))
    await local_collections.create_indexes(mongod, namespace, request.get(b"indexes", []))
    shard.namespace(str(namespace)).forget()
    return {}


@command("_shardsvrDropCollectionParticipant")
async def drop_collection_participant(shard: Shard, request: Request) -> dict[str, Any]:
    """Drop a collection, if a UUID is given only the one that has it, and forget what was known of it."""
    namespace = collection_argument(request)
    raw_uuid = request.get(b"collectionUUID")
    uuid = None if raw_uuid is None else UUID(bytes=bytes(raw_uuid))
    await shard.migrations.abort_all(str(namespace), "Collection is being dropped")
    await local_collections.drop(shard.mongod, namespace, uuid)
    state = shard.namespace(str(namespace))
    state.forget()
    await shard.refresher.refresh_collection(state)
    await shard.writer.wait_collection_saved(state.namespace)
    return {}


@command("_shardsvrDropDatabaseParticipant")
async def drop_database_participant(shard: Shard, request: Request) -> dict[str, Any]:
    """Drop what this shard has of a database, and forget what was known of it."""
    await shard.mongod.command(request.db, {"dropDatabase": 1, "writeConcern": MAJORITY})
    shard.forget_database(request.db)
    return {}


@command("_shardsvrCollModParticipant")
async def coll_mod_participant(shard: Shard, request: Request) -> dict[str, Any]:
    """Change options of the collection as it is here; ``result`` is what mongod answered."""
    namespace = collection_argument(request)
    document_argument(request, b"collModRequest")
    change = {"collMod": namespace.collection, **request.get(b"collModRequest"), "writeConcern": MAJORITY}
    reply = await shard.mongod.command(namespace.db, change)
    return {"result": {name: value for name, value in reply.items() if name not in ("$clusterTime", "operationTime")}}
