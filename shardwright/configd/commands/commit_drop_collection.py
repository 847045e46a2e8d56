"""``_configsvrCommitDropCollection``: remove from the catalog a collection that is being dropped on all shards."""

from typing import Any

from bson.binary import Binary

from shardwright.configd.catalog.collection_chunks import find_collection
from shardwright.configd.catalog.transactions import Transaction
from shardwright.configd.commands.command_registry import config_command
from shardwright.configd.commands.operation import Operation
from shardwright.sharding.catalog.collection_entry import CollectionEntry


@config_command("_configsvrCommitDropCollection")
async def commit_drop_collection(operation: Operation) -> dict[str, Any]:
    """Remove the collection's zone ranges, then its entry, then its chunks, to which nothing refers any more.

    There may be any number of zones, so they are deleted one by one, but while the entry tells whose they are.
    Repeating this changes nothing: another collection of that name is kept, and so are its zone ranges.
    """
    namespace = str(operation.namespace)
    uuid = operation.arguments.nested(b"collectionUUID").uuid(b"uuid")

    async def work(transaction: Transaction) -> None:
        collection = await find_collection(transaction, namespace)
        if collection is not None and collection.uuid == uuid:
            transaction.delete("collections", [namespace])

    catalog = operation.primary.catalog
    async with operation.primary.locks.hold(f"ns:{namespace}"):
        document = await catalog.find_by_id("collections", namespace)
        if document is not None and CollectionEntry.from_document(document).uuid == uuid:
            await catalog.delete("tags", {"ns": namespace})
        await catalog.transaction(work)
        await catalog.delete("chunks", {"uuid": Binary.from_uuid(uuid)})
    return {}
