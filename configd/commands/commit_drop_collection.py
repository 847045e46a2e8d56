"""``_configsvrCommitDropCollection``: forget a collection that is being dropped on all shards."""

from typing import Any

from bson.binary import Binary

from configd.collection_chunks import find_collection
from configd.operation import Operation
from configd.registry import config_command
from configd.transactions import Transaction


@config_command("_configsvrCommitDropCollection")
async def commit_drop_collection(operation: Operation) -> dict[str, Any]:
    """Remove the collection's entry, its chunks and its zone ranges.

    A collection of the same name but another UUID stays: the one that was meant has gone already.
    """
    namespace = str(operation.namespace)
    uuid = operation.arguments.nested("collectionUUID").uuid("uuid")

    async def work(transaction: Transaction) -> None:
        collection = await find_collection(transaction, namespace)
        if collection is not None and collection.uuid != uuid:
            return
        await transaction.delete("collections", {"_id": namespace})
        await transaction.delete("chunks", {"uuid": Binary.from_uuid(uuid)})
        await transaction.delete("tags", {"ns": namespace})

    async with operation.primary.locks.hold(f"ns:{namespace}"):
        await operation.primary.catalog.transaction(work)
    return {}
