"""The sharded collections of a database whose primary shard changes: they stay where they are."""

from collections.abc import Collection
from typing import Any

from bson.binary import Binary

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.ddl.database_recipient import DatabaseRecipient
from shardwright.shardd.local_mongod.local_collections import describe, list_indexes
from shardwright.sharding.namespace import Namespace
from shardwright.wire.rawbson import decode_document


async def sharded_namespaces(context: ShardContext, db: str) -> frozenset[str]:
    """The namespaces of a database's sharded collections.

    Raises:
        CommandError: the config servers could not be reached.
    """
    catalog = await context.catalog()
    # The slash is the character after the dot, so this is the end of all names with the prefix.
    documents = await catalog.find("collections", {"_id": {"$gte": f"{db}.", "$lt": f"{db}/"}})
    return frozenset(str(decode_document(document)["_id"]) for document in documents)


async def create_sharded_on(context: ShardContext, recipient: DatabaseRecipient, sharded: Collection[str]) -> None:
    """Create the sharded collections that a shard does not have, empty, since the primary shard has all of them.

    Raises:
        CommandError: the shard refused, or could not be reached; mongod refuses.
        BackendError: mongod does not answer.
    """
    present = await recipient.present() if sharded else {}
    for namespace in map(Namespace.parse, sorted(sharded)):
        local = await describe(context.mongod, namespace)
        if namespace.collection in present or local is None or local.uuid is None:
            continue
        description: dict[str, Any] = {
            "collectionUUID": Binary.from_uuid(local.uuid),
            "options": {name: value for name, value in local.options.items() if name != "uuid"},
            "indexes": [each for each in await list_indexes(context.mongod, namespace) if each["name"] != "_id_"],
        }
        if local.id_index is not None:
            description["idIndex"] = local.id_index
        await recipient.create_empty(namespace.collection, description)
