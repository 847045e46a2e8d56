"""Execution of the policy's decisions: splits, moves, and the treatment of chunks that are too big to move.

The functions raise the CommandError of the shard or the catalog. It is HostUnreachable or FailedToSatisfyReadPreference
if the shard cannot be reached.
"""

from enum import Enum
from typing import Any, Final

from bson.binary import Binary
from bson.int64 import Int64

from shardwright.configd.balancer.cluster_view import ClusterView
from shardwright.configd.balancer.configuration import Configuration
from shardwright.configd.catalog.transactions import Transaction
from shardwright.configd.term.donor_requests import request_move
from shardwright.configd.term.term import Term
from shardwright.sharding.balancing.cluster_state import CollectionState
from shardwright.sharding.balancing.decisions import Move, Split
from shardwright.sharding.catalog.collection_entry import CollectionEntry
from shardwright.sharding.catalog.shard_entry import ShardEntry
from shardwright.sharding.chunks import ChunkRange
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import encode_document, raw_document

logger = get_logger("configd.balancer")

TOO_BIG: Final = frozenset({ErrorCode.ChunkTooBig, ErrorCode.ExceededMemoryLimit})


class TooBig(Enum):
    """Treatment of a chunk that was too big to move."""

    SPLIT = "split"
    MARKED_JUMBO = "jumbo"


async def split_at(term: Term, view: ClusterView, split: Split) -> None:
    """Split a chunk at zone bounds; raises ShardNotFound if the view does not have its shard."""
    entry, shard = view.entries[str(split.namespace)], view.shards.get(split.chunk.shard)
    if shard is None:
        raise CommandError(ErrorCode.ShardNotFound, f"Shard {split.chunk.shard} not found")
    await _split(term, shard, entry, split.chunk.range, split.points)


async def move(term: Term, view: ClusterView, configuration: Configuration, decided: Move) -> None:
    """Request from the donor the move of a chunk, or of its first part up to the chunk size."""
    entry = view.entries[str(decided.namespace)]
    bounds = decided.chunk.range.to_document()
    request = {
        "_shardsvrMoveRange": str(decided.namespace),
        "toShard": decided.recipient,
        **(bounds if decided.is_whole else {"min": bounds["min"]}),
        "epoch": entry.epoch,
        "fromShard": decided.donor,
        "maxChunkSizeBytes": Int64(_state_of(view, decided).chunk_bytes_max),
        "forceJumbo": decided.force_jumbo.value,
        **configuration.move_options(),
    }
    await request_move(term, view.shards[decided.donor], request)


async def relieve(term: Term, view: ClusterView, decided: Move) -> TooBig:
    """Split a chunk that was too big to move, or mark it as jumbo if all its documents have the same key."""
    entry, donor = view.entries[str(decided.namespace)], view.shards[decided.donor]
    chunk = decided.chunk.range
    keys = await _split_keys(term, donor, entry, chunk, _state_of(view, decided).chunk_bytes_max)
    if keys:
        await _split(term, donor, entry, chunk, (keys[-1],))
        return TooBig.SPLIT
    await _mark_jumbo(term, entry, chunk)
    return TooBig.MARKED_JUMBO


def _state_of(view: ClusterView, decided: Move) -> CollectionState:
    return next(each for each in view.collections if each.namespace == decided.namespace)


async def _split(
    term: Term, shard: ShardEntry, entry: CollectionEntry, chunk: ChunkRange, points: tuple[bytes, ...]
) -> None:
    request = {
        "splitChunk": str(entry.namespace),
        "from": shard.id,
        "keyPattern": raw_document(entry.key.document),
        "epoch": entry.epoch,
        "timestamp": entry.timestamp,
        **chunk.to_document(),
        "splitKeys": [raw_document(point) for point in points],
    }
    await term.shards.command(shard, "admin", request)


async def _split_keys(
    term: Term, donor: ShardEntry, entry: CollectionEntry, chunk: ChunkRange, chunk_bytes: int
) -> list[bytes]:
    """Return up to two split keys of a chunk, half a chunk size apart; the second cuts off a full chunk."""
    request: dict[str, Any] = {
        "splitVector": str(entry.namespace),
        "keyPattern": raw_document(entry.key.document),
        **chunk.to_document(),
        "maxChunkSizeBytes": Int64(chunk_bytes),
        "maxSplitPoints": 2,
    }
    reply = await term.shards.command(donor, "admin", request)
    return [encode_document(key) for key in reply["splitKeys"]]


async def _mark_jumbo(term: Term, entry: CollectionEntry, chunk: ChunkRange) -> None:
    """Mark a chunk so that it is not chosen again. As in MongoDB, its version stays the same."""

    async def work(transaction: Transaction) -> None:
        query = {"uuid": Binary.from_uuid(entry.uuid), **chunk.to_document()}
        document = await transaction.find_one("chunks", query)
        if document is not None:
            transaction.put("chunks", [{**document, "jumbo": True}])

    async with term.locks.hold(f"ns:{entry.namespace}"):
        await term.catalog.transaction(work)
    logger.info("Marked a chunk as jumbo", namespace=str(entry.namespace), chunk=str(chunk))
