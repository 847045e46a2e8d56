"""``_configsvrCommitDropCollection``: remove from the catalog a collection that is being dropped on all shards."""

from typing import Any

from bson.binary import Binary

from shardwright.configd.catalog.collection_chunks import find_collection
from shardwright.configd.catalog.transactions import Transaction
from shardwright.configd.commands.command_registry import config_command
from shardwright.configd.commands.operation import Operation


@config_command("_configsvrCommitDropCollection")
async def commit_drop_collection(operation: Operation) -> dict[str, Any]:
    """Remove the collection's entry and its zone ranges together, then its chunks, to which nothing refers any more.

    Repeating this changes nothing: another collection of that name is kept, and so are its zone ranges.
    """
    namespace = str(operation.namespace)
    uuid = operation.arguments.nested(b"collectionUUID").uuid(b"uuid")

    async def work(transaction: Transaction) -> None:
        collection = await find_collection(transaction, namespace)
        if collection is not None and collection.uuid == uuid:
            transaction.delete("collections", [namespace])
            await transaction.delete_matching("tags", {"ns": namespace})

    async with operation.primary.locks.hold(f"ns:{namespace}"):
        await operation.primary.catalog.transaction(work)
        await operation.primary.catalog.delete("chunks", {"uuid": Binary.from_uuid(uuid)})
    return {}
