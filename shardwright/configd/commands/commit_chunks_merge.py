"""``_configsvrCommitChunksMerge``: merge the chunks of a range."""

from typing import Any

from shardwright.configd.catalog.collection_chunks import CollectionChunks, find_collection
from shardwright.configd.catalog.ranges import parse_range
from shardwright.configd.catalog.transactions import Transaction
from shardwright.configd.commands.command_registry import config_command
from shardwright.configd.commands.operation import Operation
from shardwright.sharding.chunk_changes import ChunkChanges, merge
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.versions import ChunkVersion
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import decode_document


@config_command("_configsvrCommitChunksMerge")
async def commit_chunks_merge(operation: Operation) -> dict[str, Any]:
    """Merge the chunks that make up a range on one shard; if there is only one already, nothing changes.

    ``validAfter`` is ignored, as in MongoDB 6.0.5: the history of the chunks is more accurate (see `merge`).

    Raises:
        CommandError: StaleEpoch, InvalidUUID; ConflictingOperationInProgress, the collection is gone;
            IllegalOperation, the chunks do not make up the range exactly.
    """
    namespace = str(operation.namespace)
    arguments = operation.arguments
    shard, uuid = arguments.string(b"shard"), arguments.nested(b"collUUID").uuid(b"uuid")
    epoch, timestamp = arguments.object_id(b"epoch"), arguments.timestamp(b"timestamp")
    bounds = arguments.nested(b"chunkRange")
    low, high = bounds.raw(b"min"), bounds.raw(b"max")

    async def work(transaction: Transaction) -> tuple[ChunkVersion, ChunkChanges, ChunkVersion, ChunkRange]:
        collection = await find_collection(transaction, namespace)
        if collection is None:
            raise CommandError(ErrorCode.ConflictingOperationInProgress, "Collection does not exist")
        if collection.uuid != uuid:
            raise CommandError(
                ErrorCode.InvalidUUID,
                f"UUID of collection does not match UUID of request. Collection UUID: {collection.uuid}, request UUID:"
                f" {uuid}",
            )
        if collection.epoch != epoch or collection.timestamp != timestamp:
            raise CommandError(ErrorCode.StaleEpoch, "Collection changed")
        merged = parse_range(collection.key, low, high)
        chunks = CollectionChunks(transaction, collection)
        before = await chunks.version()
        changes = merge(
            await chunks.overlapping(merged),
            merged,
            shard=shard,
            pattern=collection.key,
            collection_version=before,
        )
        chunks.write(changes)
        return await chunks.shard_version_after(shard, changes), changes, before, merged

    async with operation.primary.locks.hold(f"ns:{namespace}"):
        version, changes, before, merged = await operation.primary.catalog.transaction(work)
    for whole in changes.written:
        details = {
            "prevShardVersion": before.to_document(),
            "mergedVersion": whole.version.to_document(),
            "owningShard": shard,
            "min": decode_document(merged.min),
            "max": decode_document(merged.max),
            "numChunks": len(changes.deleted) + 1,
        }
        await operation.log_changes("merge", namespace, details)
    return {"shardVersion": version.to_document()}
