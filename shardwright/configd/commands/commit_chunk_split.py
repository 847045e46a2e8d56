"""``_configsvrCommitChunkSplit``: split a chunk."""

from collections.abc import Sequence
from typing import Any

from bson.objectid import ObjectId

from shardwright.configd.catalog.collection_chunks import CollectionChunks, bounds_document, find_collection
from shardwright.configd.catalog.transactions import Transaction
from shardwright.configd.commands.command_registry import config_command
from shardwright.configd.commands.operation import Operation
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.chunk_changes import ChunkChanges, split
from shardwright.sharding.chunks import Chunk, ChunkRange
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.versions import ChunkVersion
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


@config_command("_configsvrCommitChunkSplit")
async def commit_chunk_split(operation: Operation) -> dict[str, Any]:
    """Split a chunk at the given points; a split already made is confirmed.

    Raises:
        CommandError: StaleEpoch; ConflictingOperationInProgress, the collection is gone; BadValue, the shard does not
            own such a chunk; InvalidOptions, the points do not split it.
    """
    namespace = str(operation.namespace)
    arguments = operation.arguments
    epoch, shard = arguments.object_id(b"collEpoch"), arguments.string(b"shard")
    low, high = arguments.raw(b"min"), arguments.raw(b"max")
    points = arguments.raw_documents(b"splitPoints")

    async def work(transaction: Transaction) -> tuple[dict[str, Any], Chunk | None, ChunkChanges, ChunkVersion]:
        chunks = await _chunks_of(transaction, namespace, epoch, low, high)
        wanted = ChunkRange.of(chunks.collection.key, low, high)
        before = await chunks.version()
        whole = await chunks.exactly(wanted)
        if whole is None or whole.shard != shard:
            parts = await chunks.overlapping(wanted)
            if not _is_split_already(parts, wanted, points, shard, chunks.collection.key):
                raise CommandError(
                    ErrorCode.BadValue,
                    f"chunk operation commit failed: shard {shard} owns no chunk {wanted} of {namespace}",
                )
            changes = ChunkChanges()
        else:
            changes = split(whole, points, pattern=chunks.collection.key, collection_version=before, new_id=ObjectId)
            chunks.write(changes)
        reply = {
            "collectionVersion": changes.collection_version(before).to_document(),
            "shardVersion": (await chunks.shard_version_after(shard, changes)).to_document(),
        }
        return reply, whole, changes, before

    async with operation.primary.locks.hold(f"ns:{namespace}"):
        reply, whole, changes, before = await operation.primary.catalog.transaction(work)
    if whole is not None:
        await _log(operation, namespace, whole, changes.written, before)
    return reply


async def _chunks_of(
    transaction: Transaction, namespace: str, epoch: ObjectId, low: bytes, high: bytes
) -> CollectionChunks:
    collection = await find_collection(transaction, namespace)
    if collection is None:
        raise CommandError(ErrorCode.ConflictingOperationInProgress, "Collection does not exist")
    if collection.epoch != epoch:
        raise CommandError(
            ErrorCode.StaleEpoch,
            f"splitChunk cannot split chunk [{document_text(low)}, {document_text(high)}). Epoch of collection"
            f" '{namespace}' has changed. Current epoch: {collection.epoch}, cmd epoch: {epoch}",
        )
    return CollectionChunks(transaction, collection)


def _is_split_already(
    parts: Sequence[Chunk], wanted: ChunkRange, points: Sequence[bytes], shard: str, pattern: ShardKeyPattern
) -> bool:
    """Whether the shard's chunks begin and end at exactly the requested points."""
    ranges = [part.range(pattern) for part in parts]
    begins = [wanted.min_key, *(pattern.key_bytes(point) for point in points)]
    return (
        [each.min_key for each in ranges] == begins
        and ranges[-1].max_key == wanted.max_key
        and all(part.shard == shard for part in parts)
    )


async def _log(
    operation: Operation, namespace: str, whole: Chunk, parts: Sequence[Chunk], before: ChunkVersion
) -> None:
    """Write one entry for a split in two, else one per part; ``before`` is the collection version, as in MongoDB."""
    whole_before, owner = bounds_document(whole, before), {"owningShard": whole.shard}
    if len(parts) == 2:
        left, right = map(bounds_document, parts)
        await operation.log_changes("split", namespace, {"before": whole_before, "left": left, "right": right, **owner})
        return
    await operation.log_changes(
        "multi-split",
        namespace,
        *(
            {"before": whole_before, "number": number, "of": len(parts), "chunk": bounds_document(part), **owner}
            for number, part in enumerate(parts, start=1)
        ),
    )
