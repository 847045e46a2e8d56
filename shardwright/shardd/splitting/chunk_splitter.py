"""Splitting one chunk that has grown."""

from collections.abc import Sequence
from enum import Enum
from typing import Final

from bson.binary import Binary

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.splitting.chunk_bytes import ChunkBounds, bounds_of
from shardwright.shardd.splitting.commit import commit_split
from shardwright.shardd.splitting.settings import SplitSettings
from shardwright.shardd.splitting.split_points import find_split_points
from shardwright.shardd.splitting.top_chunk import HotEnd, extreme_key, hot_end, with_extreme_point
from shardwright.sharding.catalog.collection_entry import CollectionEntry
from shardwright.sharding.routing_table import RoutedChunk, RoutingTable
from shardwright.sharding.sharded_collection import ShardedCollection
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import decode_document, raw_document

logger = get_logger("shardd.splitting")

_POINTS_MAX: Final = 8192
"""MongoDB's limit for one split."""


class Outcome(Enum):
    """What came of an attempt to split a chunk."""

    SPLIT = "split"
    NO_SPLIT_POINTS = "noSplitPoints"
    DISABLED = "disabled"
    OUTDATED = "outdated"
    """The chunk has changed, or has moved to another shard, since it was found to have grown."""


class ChunkSplitter:
    """Looks for split points in chunks, splits them and offers hot ends to other shards.

    Args:
        context: this shard daemon's context.
    """

    def __init__(self, context: ShardContext) -> None:
        self._context = context

    async def split(self, namespace: str, bounds: ChunkBounds, settings: SplitSettings) -> Outcome:
        """Split a chunk if it is larger than the chunk size of its collection.

        Raises:
            CommandError: the split failed.
            BackendError: mongod does not answer.
        """
        entry = await self._entry(namespace)
        if not settings.is_enabled or (entry is not None and entry.no_auto_split):
            return Outcome.DISABLED
        found = self._find(namespace, bounds)
        if entry is None or found is None:
            return Outcome.OUTDATED
        table, chunk = found
        size = entry.max_chunk_size_bytes or settings.chunk_bytes_max
        points = (await find_split_points(self._context.mongod, table, chunk, size))[:_POINTS_MAX]
        if not points:
            return Outcome.NO_SPLIT_POINTS
        end = hot_end(table, chunk)
        extreme = None if end is None else await extreme_key(self._context.mongod, table, chunk, end)
        changed = None if end is None else with_extreme_point(points, extreme, end, table, chunk)
        if not await self._commit(table.collection, bounds, changed or points):
            return Outcome.OUTDATED
        logger.info(
            "Split a chunk that has grown",
            namespace=namespace,
            min=decode_document(chunk.min),
            max=decode_document(chunk.max),
            points=len(points),
            chunk_bytes_max=size,
        )
        if end is not None and changed is not None and settings.may_move and entry.may_migrate and not entry.no_balance:
            await self._offer(table.collection, end, changed)
        return Outcome.SPLIT

    async def _entry(self, namespace: str) -> CollectionEntry | None:
        documents = await (await self._context.catalog()).find("collections", {"_id": namespace})
        return CollectionEntry.from_document(decode_document(documents[0])) if documents else None

    def _find(self, namespace: str, bounds: ChunkBounds) -> tuple[RoutingTable, RoutedChunk] | None:
        """A chunk as this shard knows it now; None if it is not one of its chunks any more."""
        state = self._context.namespace(namespace)
        table = state.table
        if table is None:
            return None
        chunk = table.chunk_for_key(bounds[0])
        return (table, chunk) if bounds_of(chunk) == bounds and chunk.shard == state.shard else None

    async def _commit(self, collection: ShardedCollection, bounds: ChunkBounds, points: Sequence[bytes]) -> bool:
        """Commit a split; returns whether the chunk was still there once no move was under way.

        A collection that has been dropped and created again, or resharded, may have a chunk with the same bounds, of
        which the points are no keys.
        """
        namespace = str(collection.namespace)
        async with self._context.ddl_locks.chunk_change(namespace):
            found = self._find(namespace, bounds)
            if found is None or found[0].collection.timestamp != collection.timestamp:
                return False
            table, chunk = found
            await commit_split(
                self._context,
                namespace,
                (chunk.min, chunk.max),
                points,
                shard=chunk.shard,
                epoch=table.collection.epoch,
                timestamp=table.collection.timestamp,
                is_automatic=True,
            )
        return True

    async def _offer(self, collection: ShardedCollection, end: HotEnd, points: Sequence[bytes]) -> None:
        """Offer the chunk at the hot end to another shard. If it stays here, the balancer will see to it."""
        namespace = str(collection.namespace)
        state = self._context.namespace(namespace)
        table = state.table
        if table is None or table.collection.timestamp != collection.timestamp:
            return
        pattern = table.key_pattern
        key = pattern.global_min_bytes() if end is HotEnd.LOWEST else pattern.key_bytes(points[-1])
        chunk = table.chunk_for_key(key)
        if chunk.shard != state.shard:
            return
        request = {
            "_configsvrMoveChunk": 1,
            "ns": namespace,
            "min": raw_document(chunk.min),
            "max": raw_document(chunk.max),
            "shard": chunk.shard,
            "uuid": Binary.from_uuid(table.collection.uuid),
            "lastmod": table.collection.version(chunk.version).lastmod,
            "lastmodEpoch": table.collection.epoch,
            "lastmodTimestamp": table.collection.timestamp,
            "writeConcern": {"w": "majority", "wtimeout": 60_000},
        }
        try:
            await (await self._context.catalog()).command(request)
        except (CommandError, BackendError) as error:
            is_busy = isinstance(error, CommandError) and error.code == ErrorCode.ConflictingOperationInProgress
            log = logger.info if is_busy else logger.warning
            log("The hot end of a collection could not be moved", namespace=namespace, error=str(error))
