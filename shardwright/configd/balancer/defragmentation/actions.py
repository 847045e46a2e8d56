"""The steps of a defragmentation on chunks: merge, measure, move.

They raise the CommandError of the shard or the catalog, for instance because the chunks have changed. It is
HostUnreachable or FailedToSatisfyReadPreference if the shard cannot be reached.
"""

from collections.abc import Sequence
from typing import Any

from bson.int64 import Int64

from shardwright.configd.balancer.configuration import Configuration
from shardwright.configd.balancer.defragmentation.situation import SIZE_FIELD, chunks_of
from shardwright.configd.catalog.transactions import Transaction
from shardwright.configd.term.donor_requests import request_move
from shardwright.configd.term.term import Term
from shardwright.sharding.balancing.defragmentation import LARGE_BYTES, MeasuredChunk, merged_size
from shardwright.sharding.catalog.collection_entry import CollectionEntry
from shardwright.sharding.catalog.shard_entry import ShardEntry
from shardwright.sharding.chunks import ChunkRange
from shardwright.wire.rawbson import raw_document


async def merge(
    term: Term, shard: ShardEntry, entry: CollectionEntry, parts: Sequence[MeasuredChunk], threshold: int
) -> MeasuredChunk:
    """Merge adjacent chunks of one shard, and record the size of the whole if it is known."""
    whole = ChunkRange.of(entry.key, parts[0].range.min, parts[-1].range.max)
    request = {
        "mergeChunks": str(entry.namespace),
        "bounds": [raw_document(whole.min), raw_document(whole.max)],
        "epoch": entry.epoch,
        "timestamp": entry.timestamp,
    }
    await term.shards.command(shard, "admin", request)
    merged = MeasuredChunk(whole, shard.id, merged_size(parts, threshold))
    if merged.size is not None:
        await record_size(term, entry, merged, merged.size)
    return merged


async def measure(term: Term, shard: ShardEntry, entry: CollectionEntry, chunk: MeasuredChunk, threshold: int) -> None:
    """Measure a chunk on its shard, up to the size that shows that it is not small."""
    request: dict[str, Any] = {
        "dataSize": str(entry.namespace),
        "keyPattern": raw_document(entry.key.document),
        **chunk.range.to_document(),
        "estimate": True,
        "maxSize": Int64(threshold),
    }
    reply = await term.shards.command(shard, entry.namespace.db, request)
    size = int(reply["size"])
    is_small = not reply.get("maxReached") and size < threshold
    await record_size(term, entry, chunk, size if is_small else LARGE_BYTES)


async def record_size(term: Term, entry: CollectionEntry, chunk: MeasuredChunk, size: int) -> None:
    """Record the size of a chunk if it is unchanged and on the same shard. Errors as for transactions."""

    async def work(transaction: Transaction) -> None:
        query = {**chunks_of(entry), **chunk.range.to_document(), "shard": chunk.shard}
        document = await transaction.find_one("chunks", query)
        if document is not None:
            transaction.put("chunks", [{**document, SIZE_FIELD: Int64(size)}])

    await term.catalog.transaction(work)


async def move(
    term: Term,
    donor: ShardEntry,
    recipient: ShardEntry,
    entry: CollectionEntry,
    chunk: MeasuredChunk,
    configuration: Configuration,
    chunk_bytes_max: int,
) -> None:
    """Move a whole small chunk to another shard."""
    request = {
        "_shardsvrMoveRange": str(entry.namespace),
        "toShard": recipient.id,
        **chunk.range.to_document(),
        "epoch": entry.epoch,
        "fromShard": donor.id,
        "maxChunkSizeBytes": Int64(chunk_bytes_max),
        "forceJumbo": 0,
        **configuration.move_options(),
    }
    await request_move(term, donor, request)
