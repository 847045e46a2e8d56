"""Finding the keys at which a chunk of the local collection is to be split."""

from typing import Any, Final

from bson.int64 import Int64

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.splitting.split_positions import split_positions
from shardwright.sharding.routing_table import RoutedChunk, RoutingTable
from shardwright.wire.rawbson import encode_document, raw_document

_KEYS_PER_CHUNK: Final = 16
"""How many keys of each full chunk mongod is asked for; split points are among them."""

_STEP_MIN: Final = 2
"""mongod cannot be asked for every single key."""


async def find_split_points(
    mongod: LocalMongod, table: RoutingTable, chunk: RoutedChunk, chunk_bytes_max: int
) -> list[bytes]:
    """Where ``autoSplitVector`` would split a chunk: into parts of the chunk size, the last ones equally large.

    The result is empty if the local collection is smaller than one chunk, or all documents have the same key.

    Only members of sharded clusters have ``autoSplitVector``. A plain mongod has ``splitVector``, which does not care
    how large the last part gets; so it is asked for more keys, and the points are chosen among these.

    Raises:
        CommandError: mongod refuses, for instance because no index supports the shard key.
        BackendError: mongod does not answer.
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
    # Many documents have the same keys, so that the keys are further apart than was asked for.
    apart = documents / (len(keys) + 1)
    every = max(1, int(documents_max / apart))
    return keys[every - 1 :: every]


async def _keys(
    mongod: LocalMongod, table: RoutingTable, chunk: RoutedChunk, chunk_bytes_max: int, step: int
) -> list[bytes]:
    """The key of the last of every ``step`` documents in a chunk, or of half a chunk size; each key just once."""
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
    """Those of the keys, which are the last of every ``step`` documents, that are nearest to the positions."""
    if not keys:
        return []
    numbers = dict.fromkeys(min(max(round(position / step), 1), len(keys)) - 1 for position in positions)
    return [keys[number] for number in numbers]
