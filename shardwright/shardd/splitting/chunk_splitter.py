"""Splitting one chunk that has grown: its byte count, split points and hot end, and the commit on the config servers.

The first or last chunk of a collection whose shard key ascends or descends gets one key only. A chunk is split after as
many documents as by MongoDB's ``autoSplitVector``. A split is committed unless it has been made already
(`commit_split`).

Functions that access mongod raise BackendError if it does not answer.
"""

from collections.abc import Sequence
from enum import Enum
from itertools import pairwise
from typing import Any, Final, TypeAlias

from bson.binary import Binary
from bson.int64 import Int64
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod.shard_key_index import ShardKeyIndex
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.shardd.splitting.growth import SplitSettings
from shardwright.sharding.catalog.documents import CollectionEntry
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.routing_table import RoutedChunk, RoutingTable, ShardedCollection
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import decode_document, encode_document, raw_document
from shardwright.wire.transport.cursor import RawCursor

ChunkBounds: TypeAlias = tuple[bytes, bytes]
"""The key bytes of a chunk's bounds. A chunk with other bounds is another chunk with a separate count."""

CHUNKS_MAX: Final = 100_000
"""Maximum number of counted chunks per collection; beyond it, the oldest counts are discarded."""


async def commit_split(
    context: ShardContext,
    namespace: str,
    bounds: tuple[bytes, bytes],
    points: Sequence[bytes],
    *,
    shard: str,
    epoch: ObjectId,
    timestamp: Timestamp | None,
    is_automatic: bool = False,
) -> None:
    """Split a chunk of a shard, and refresh the collection's metadata.

    The caller holds the lock for changes of the collection's chunks.

    Args:
        points: the split points, in order.
        is_automatic: whether the chunk is split because it has grown.

    Raises:
        CommandError: the config servers refused, and the chunk is not split as requested; or they cannot be reached.
        BackendError: mongod does not answer.
    """
    low, high = bounds
    commit: dict[str, Any] = {
        "_configsvrCommitChunkSplit": namespace,
        "collEpoch": epoch,
        "min": raw_document(low),
        "max": raw_document(high),
        "splitPoints": [raw_document(point) for point in points],
        "shard": shard,
        **({"fromChunkSplitter": True} if is_automatic else {}),
    }
    if timestamp is not None:
        commit["collTimestamp"] = timestamp
    state = context.namespace(namespace)
    catalog = await context.catalog()
    try:
        await catalog.commit(commit)
    except CommandError:
        # A repeated request finds its chunk already split, so the resulting chunks decide.
        await context.refresher.reread_collection(state)
        if not _is_split(state, low, high, points):
            raise
    else:
        await context.refresher.reread_collection(state)


def _is_split(state: NamespaceState, low: bytes, high: bytes, points: Sequence[bytes]) -> bool:
    """Whether there is exactly one chunk between each two neighbours of ``low``, the split points and ``high``."""
    table = state.table
    if table is None:
        return False
    encode = table.key_pattern.key_bytes
    keys = [encode(bound) for bound in (low, *points, high)]
    for key, next_key in pairwise(keys):
        if key >= next_key:
            return False
        chunk = table.chunk_for_key(key)
        if (chunk.min_key, chunk.max_key) != (key, next_key):
            return False
    return True


def bounds_of(chunk: RoutedChunk) -> ChunkBounds:
    """Return the bounds that identify a chunk."""
    return chunk.min_key, chunk.max_key


class ChunkBytes:
    """The counts of one collection."""

    def __init__(self) -> None:
        self._counts: dict[ChunkBounds, int] = {}

    def add(self, chunk: ChunkBounds, number: int) -> int:
        """Add bytes to a chunk; return the new count."""
        count = self._counts[chunk] = self._counts.get(chunk, 0) + number
        if len(self._counts) > CHUNKS_MAX:
            del self._counts[next(iter(self._counts))]
        return count

    def take(self, chunk: ChunkBounds) -> int:
        """Restart a chunk's count at 0; return the former count."""
        return self._counts.pop(chunk, 0)

    def reaching(self, threshold: int) -> list[ChunkBounds]:
        """Return the chunks with a count of at least ``threshold``."""
        return [chunk for chunk, count in self._counts.items() if count >= threshold]


_RESPACED_MAX: Final = 3
"""Maximum number of trailing split points that are moved if too little is left after the last one."""

_TAIL_MIN: Final = 0.8
_AVERAGE_MIN: Final = 2 / 3
"""Limits for the last chunks, both as fractions of a full chunk.

A remainder of at least the first is kept. Otherwise the last chunks are made equally large, and there is one fewer if
they would be smaller than the second.
"""


def split_positions(documents: int, documents_max: int) -> list[int]:
    """Return the numbers of documents below each split point, ascending.

    Args:
        documents: the number in the chunk.
        documents_max: the number that makes up a full chunk, at least 1.
    """
    points = max(0, documents - 1) // documents_max
    tail = documents - points * documents_max
    positions = [(number + 1) * documents_max for number in range(points)]
    if not points or tail >= _TAIL_MIN * documents_max:
        return positions
    respaced = min(points, _RESPACED_MAX)
    rest = respaced * documents_max + tail
    chunks = respaced + 1 if rest >= _AVERAGE_MIN * documents_max * (respaced + 1) else respaced
    kept = positions[: points - respaced]
    first = len(kept) * documents_max
    return kept + [first + number * rest // chunks for number in range(1, chunks)]


_KEYS_PER_CHUNK: Final = 16
"""Number of keys requested from mongod for each full chunk; split points are chosen among them."""

_STEP_MIN: Final = 2
"""Minimum distance of keys, because mongod cannot return every single key."""


async def find_split_points(
    mongod: LocalMongod, table: RoutingTable, chunk: RoutedChunk, chunk_bytes_max: int
) -> list[bytes]:
    """Return the points at which ``autoSplitVector`` would split a chunk: parts of the chunk size, the last ones equal.

    The result is empty if the local collection is smaller than one chunk, or all documents have the same key.

    Only members of sharded clusters have ``autoSplitVector``. A plain mongod has ``splitVector``, which ignores the
    size of the last part. So it returns more keys, and the points are chosen among these.

    Raises:
        CommandError: mongod refuses, for instance because no index supports the shard key.
    """
    namespace = table.namespace
    stats = await mongod.command(namespace.db, {"collStats": namespace.collection})
    average, size = int(stats.get("avgObjSize", 0)), int(stats.get("size", 0))
    if not average or size < chunk_bytes_max:
        return []
    documents_max = max(1, chunk_bytes_max // average)
    step = max(_STEP_MIN, documents_max // _KEYS_PER_CHUNK)
    keys = await _keys(mongod, table, chunk, chunk_bytes_max, step)
    documents = await _count_documents(mongod, table, chunk)
    if len(keys) >= documents // step - 1:
        return _at(keys, split_positions(documents, documents_max), step)
    # Many documents have the same keys, so the keys are further apart than requested.
    apart = documents / (len(keys) + 1)
    every = max(1, int(documents_max / apart))
    return keys[every - 1 :: every]


async def _keys(
    mongod: LocalMongod, table: RoutingTable, chunk: RoutedChunk, chunk_bytes_max: int, step: int
) -> list[bytes]:
    """Return the distinct keys of the last of every ``step`` documents in a chunk, or of half a chunk size."""
    request: dict[str, Any] = {
        "splitVector": str(table.namespace),
        **_range(table, chunk),
        "maxChunkSizeBytes": Int64(chunk_bytes_max),
        "maxChunkObjects": Int64(step - 1),  # mongod returns the next one
    }
    reply = await mongod.command("admin", request)
    return [encode_document(key) for key in reply["splitKeys"]]


async def _count_documents(mongod: LocalMongod, table: RoutingTable, chunk: RoutedChunk) -> int:
    namespace = table.namespace
    request = {"dataSize": str(namespace), **_range(table, chunk), "estimate": True}
    return int((await mongod.command(namespace.db, request))["numObjects"])


def _range(table: RoutingTable, chunk: RoutedChunk) -> dict[str, Any]:
    return {
        "keyPattern": raw_document(table.key_pattern.document),
        "min": raw_document(chunk.min),
        "max": raw_document(chunk.max),
    }


def _at(keys: list[bytes], positions: list[int], step: int) -> list[bytes]:
    """Return the keys nearest to the positions. A key is the last of every ``step`` documents."""
    if not keys:
        return []
    numbers = dict.fromkeys(min(max(round(position / step), 1), len(keys)) - 1 for position in positions)
    return [keys[number] for number in numbers]


class HotEnd(Enum):
    """The end of the key space at which a chunk lies."""

    LOWEST = "lowest"
    HIGHEST = "highest"


def hot_end(table: RoutingTable, chunk: RoutedChunk) -> HotEnd | None:
    """Return the end at which to split a chunk off; None in the middle of the key space, and for hashed keys.

    As in MongoDB, the only chunk of a collection counts as its first.
    """
    pattern = table.key_pattern
    if pattern.hashed_field is not None:
        return None
    if chunk.min_key == pattern.global_min_bytes():
        return HotEnd.LOWEST
    return HotEnd.HIGHEST if chunk.max_key == pattern.global_max_bytes() else None


def with_extreme_point(
    points: Sequence[bytes], extreme: bytes | None, end: HotEnd, table: RoutingTable, chunk: RoutedChunk
) -> list[bytes] | None:
    """Replace the first or last split point by the extreme key; None if there is no such key or it is a chunk bound."""
    encode = table.key_pattern.key_bytes
    if extreme is None or not chunk.min_key < encode(extreme) < chunk.max_key:
        return None
    rest = list(points[1:] if end is HotEnd.LOWEST else points[:-1])
    changed = [extreme, *rest] if end is HotEnd.LOWEST else [*rest, extreme]
    keys = [encode(point) for point in changed]
    return changed if all(low < high for low, high in pairwise(keys)) else None


async def extreme_key(mongod: LocalMongod, table: RoutingTable, chunk: RoutedChunk, end: HotEnd) -> bytes | None:
    """Return the shard key of the chunk's last document, or of its second one; None if there is none.

    A chunk excludes its upper bound, so a chunk that ends at the second key has one document.

    Raises:
        CommandError: mongod refuses; IndexNotFound.
    """
    pattern, namespace = table.key_pattern, table.namespace
    index = await ShardKeyIndex.find(mongod, namespace, pattern)
    scan = index.scans(pattern, ChunkRange(chunk.min, chunk.max, chunk.min_key, chunk.max_key))[0]
    is_low = end is HotEnd.LOWEST
    order = {name: direction if is_low else _reversed(direction) for name, direction in index.key.items()}
    find = {"find": namespace.collection, **scan, "sort": order, "skip": int(is_low), "limit": 1}
    documents = await RawCursor(mongod.pool.exchange, namespace.db, find).all_documents()
    return pattern.extract_from_document(documents[0]) if documents else None


def _reversed(direction: Any) -> Any:  # noqa: ANN401 - a number, or the name of a kind of index
    return -direction if isinstance(direction, int | float) else direction


logger = get_logger("shardd.splitting")

_POINTS_MAX: Final = 8192
"""MongoDB's limit for one split."""


class Outcome(Enum):
    """Result of an attempt to split a chunk."""

    SPLIT = "split"
    NO_SPLIT_POINTS = "noSplitPoints"
    DISABLED = "disabled"
    OUTDATED = "outdated"
    """The chunk has changed, or has moved to another shard, since it was found to have grown."""


class ChunkSplitter:
    """The splitter of single chunks, which also offers hot ends to other shards."""

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
        """Find a chunk in the current placement; None if this shard no longer owns it."""
        state = self._context.namespace(namespace)
        table = state.table
        if table is None:
            return None
        chunk = table.chunk_for_key(bounds[0])
        return (table, chunk) if bounds_of(chunk) == bounds and chunk.shard == state.shard else None

    async def _commit(self, collection: ShardedCollection, bounds: ChunkBounds, points: Sequence[bytes]) -> bool:
        """Commit a split; return whether the chunk still existed once no move was active.

        A collection that was dropped and created again, or resharded, may have a chunk with the same bounds but other
        keys.
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
        """Offer the chunk at the hot end to another shard. If it stays here, the balancer may move it."""
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
