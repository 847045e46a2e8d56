"""Requests of the balancer and of users to shards: moves, splits, refreshes, and the sessions collection.

A move that users and the balancer request at the same time runs once. Functions raise the CommandError of the shard or
the catalog. It is HostUnreachable or FailedToSatisfyReadPreference if the shard cannot be reached.

``config.system.sessions`` is created when a router requests it at its first session refresh, if there are shards. It is
sharded by ``_id`` and has a TTL index. Sessions expire 30 minutes after their use: the parameter
``localLogicalSessionTimeoutMinutes`` of the config servers' mongods.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Final

import bson
import trio
from bson.binary import Binary
from bson.int64 import Int64

from shardwright.configd.balancer.cluster_view import ClusterView, Configuration
from shardwright.configd.catalog.transactions import Transaction
from shardwright.configd.term.term import Term
from shardwright.sharding.balancing.cluster_state import CollectionState, Move, Split
from shardwright.sharding.catalog.documents import INDEXES, CollectionEntry, ShardEntry
from shardwright.sharding.catalog.settings import CHUNK_SIZE_ID, ChunkSizeSettings
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.logical_sessions import COLLECTION, DB, NAMESPACE
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import encode_document, raw_document

logger = get_logger("configd.balancer")

TOO_BIG: Final = frozenset({ErrorCode.ChunkTooBig, ErrorCode.ExceededMemoryLimit})


async def request_move(term: Term, donor: ShardEntry, request: Mapping[str, Any]) -> None:
    """Request a move of a range from a donor; returns after the move. A pending equal request shares its answer.

    The donor continues even if this ends.

    Raises:
        CommandError: the donor's error; HostUnreachable or FailedToSatisfyReadPreference, it cannot be reached.
    """

    async def move() -> None:
        why = f"Migrating chunk(s) in collection {request['_shardsvrMoveRange']}"
        async with term.shown_locks.shown([str(request["_shardsvrMoveRange"])], "BalancerCommandsScheduler", why):
            await _send(term, donor, request)

    await term.migrations.run(bson.encode(request), move)


async def _send(term: Term, donor: ShardEntry, request: Mapping[str, Any]) -> None:
    try:
        await term.shards.command(donor, "admin", request)
    except CommandError as error:
        if not has_category(error.code, Category.NOT_PRIMARY):
            raise
        await term.shards.check_term()  # this daemon itself may not be primary any more
        # Unchanged, the router would take this for an error of the config server, and look for its new primary.
        raise CommandError(
            ErrorCode.HostUnreachable, f"the primary of shard {donor.id} changed too often :: caused by :: {error}"
        ) from error


async def chunk_bytes_default(term: Term) -> int:
    """Return the default chunk size of collections; raises a CommandError for a malformed setting."""
    document = await term.catalog.find_by_id("settings", CHUNK_SIZE_ID)
    return ChunkSizeSettings.from_document(document).value_bytes


_MAJORITY: Final = {"w": "majority", "wtimeout": 60_000}


async def refresh_shards(term: Term, namespace: str, owners: Iterable[str]) -> None:
    """Refresh a collection on shards, concurrently.

    The command is sent to all. Then the error of the first failed shard by name is raised.
    """
    flush = {
        "_flushRoutingTableCacheUpdatesWithWriteConcern": namespace,
        "syncFromConfig": True,
        "writeConcern": _MAJORITY,
    }
    errors: dict[str, CommandError] = {}

    async def tell(shard: ShardEntry) -> None:
        try:
            await term.shards.command(shard, "admin", flush)
        except CommandError as error:
            errors[shard.id] = error

    shards = [await term.catalog.shard(shard_id) for shard_id in owners]
    async with trio.open_nursery() as nursery:
        for shard in shards:
            nursery.start_soon(tell, shard)
    for shard_id in sorted(errors):
        raise errors[shard_id]


_LOCK: Final = f"ns:{NAMESPACE}:setup"


async def set_up_sessions_collection(term: Term) -> None:
    """Create and shard the collection on the first shard unless it is sharded.

    Raises ShardNotFound if there are no shards yet, or the shard's error.
    """
    async with term.locks.hold(_LOCK):
        if await term.catalog.find_by_id("collections", NAMESPACE) is not None:
            return
        shards = await term.catalog.shards()
        if not shards:
            raise CommandError(
                ErrorCode.ShardNotFound,
                f"Failed to create {NAMESPACE}: cannot create the collection until there are shards",
            )
        seconds = 60 * await term.catalog.session_timeout_minutes()
        indexes = [index.to_specification() | {"expireAfterSeconds": seconds} for index in INDEXES[COLLECTION]]
        create = {"createIndexes": COLLECTION, "indexes": indexes, "writeConcern": _MAJORITY}
        await term.shards.command(shards[0], DB, create)
        shard = {"_shardsvrCreateCollection": COLLECTION, "shardKey": {"_id": 1}, "writeConcern": _MAJORITY}
        await term.shards.command(shards[0], DB, shard)
    logger.info("The sessions collection is sharded", shard=shards[0].id)


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
