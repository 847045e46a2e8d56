"""The hot end of a collection whose shard key ascends or descends: its first or last chunk gets one key only.

If a collection's first or last chunk has to be split, its keys probably arrive in order. Then the chunk is split at its
very last key (or its second, if it is the first chunk), so that what arrives next can be taken by another shard.
"""

from collections.abc import Sequence
from enum import Enum
from itertools import pairwise
from typing import Any

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.range_scan import ShardKeyIndex
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.routing_table import RoutedChunk, RoutingTable
from shardwright.wire.transport.cursor import RawCursor


class HotEnd(Enum):
    """At which end of the key space a chunk lies."""

    LOWEST = "lowest"
    HIGHEST = "highest"


def hot_end(table: RoutingTable, chunk: RoutedChunk) -> HotEnd | None:
    """The end at which a chunk is to be split off; None for chunks in the middle, and for hashed keys, which have none.

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
    """The split points with the extreme key in place of the first or last of them; None if it cannot be one.

    It cannot if there is no such key, or if it is a bound of the chunk.
    """
    encode = table.key_pattern.key_bytes
    if extreme is None or not chunk.min_key < encode(extreme) < chunk.max_key:
        return None
    rest = list(points[1:] if end is HotEnd.LOWEST else points[:-1])
    changed = [extreme, *rest] if end is HotEnd.LOWEST else [*rest, extreme]
    keys = [encode(point) for point in changed]
    return changed if all(low < high for low, high in pairwise(keys)) else None


async def extreme_key(mongod: LocalMongod, table: RoutingTable, chunk: RoutedChunk, end: HotEnd) -> bytes | None:
    """The shard key of the chunk's last document, or of its second one; None if there is none.

    The upper bound of a chunk does not belong to it, so a chunk that ends at the second key has one document.

    Raises:
        CommandError: mongod refuses; IndexNotFound.
        BackendError: mongod does not answer.
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
