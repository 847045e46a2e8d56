"""``_configsvrEnsureChunkVersionIsGreaterThan``: rule out that a lost commit of a migration still takes effect."""

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
    """Make sure that a migration which tried to commit at a version can no longer be committed.

    A collection or a chunk that is no more can be taken for changed, so there is nothing to do then. The collection is
    known by its UUID, whatever its name is now.
    """
    arguments = operation.arguments
    # The command's own field has always been a number in MongoDB 6.0, and the namespace a field of its own.
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
