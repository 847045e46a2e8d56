"""``_configsvrEnsureChunkVersionIsGreaterThan``: ensure that a lost migration commit can no longer take effect."""

from typing import Any

from bson.binary import Binary

from shardwright.configd.catalog.collection_chunks import CollectionChunks
from shardwright.configd.catalog.transactions import Transaction
from shardwright.configd.commands.command_registry import config_command
from shardwright.configd.commands.operation import Operation
from shardwright.sharding.arguments import chunk_version
from shardwright.sharding.catalog.collection_entry import CollectionEntry
from shardwright.sharding.chunk_version_bumps import ensure_version_is_greater_than
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.namespace import Namespace


@config_command("_configsvrEnsureChunkVersionIsGreaterThan")
async def ensure_chunk_version_is_greater_than(operation: Operation) -> dict[str, Any]:
    """Ensure that a migration that tried to commit at a given version can no longer be committed.

    If the collection or chunk no longer exists, it counts as changed, so there is nothing to do. The collection is
    identified by its UUID, whatever its name is now.
    """
    arguments = operation.arguments
    # In MongoDB 6.0 the command's own field has always been a number, and the namespace a separate field.
    text = arguments.string(b"nss") if arguments.has(b"nss") else operation.subject
    namespace = Namespace.parse_collection(text)
    low, high = arguments.raw(b"minKey"), arguments.raw(b"maxKey")
    version, uuid = chunk_version(arguments, b"version"), arguments.maybe_uuid(b"collectionUUID")

    async def work(transaction: Transaction) -> None:
        query = {"_id": str(namespace)} if uuid is None else {"uuid": Binary.from_uuid(uuid)}
        document = await transaction.find_one("collections", query)
        if document is None:
            return
        collection = CollectionEntry.from_document(document)
        if collection.epoch != version.epoch:
            return
        chunks = CollectionChunks(transaction, collection)
        chunk = await chunks.exactly(ChunkRange.of(collection.key, low, high))
        chunks.write(ensure_version_is_greater_than(chunk, version, collection_version=await chunks.version()))

    async with operation.primary.locks.hold(f"ns:{namespace}"):
        await operation.primary.catalog.transaction(work)
    return {}
