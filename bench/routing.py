"""Routing tables in memory: the cost of a look-up, the size of a table, and the cost of a refresh, in CPU time.

Each size is measured in its own process (``python -m bench.routing CHUNKS``), so that only the table's memory is
measured.
"""

import json
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from time import process_time
from typing import Any, Final
from uuid import UUID

import bson
from bson.binary import Binary
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from bench.loadgen import BenchError
from bench.memory import resident_bytes
from shardwright.sharding.chunks import ChunkPlacement, read_placements
from shardwright.sharding.cluster_time import pack_timestamp, unpack_timestamp
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.routing_table import RoutingTable, RoutingTableBuilder, ShardedCollection
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.targeting.targets import target_filter
from shardwright.wire.rawbson import raw_document

SHARDS: Final = tuple(f"shard{number}" for number in range(4))
CHANGED_CHUNKS: Final = 10

_KEYS_PER_CHUNK: Final = 100
_LOOK_UPS: Final = 20_000
_REFRESHES: Final = 20
_CREATED: Final = Timestamp(1_700_000_000, 1)
_SEED: Final = 1
_BATCH: Final = 5_000
_UUID: Final = Binary.from_uuid(UUID(int=1))


def measure_routing(sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Measure tables of these sizes and print them as a table."""
    print("\nrouting tables")
    columns = ("chunks", "look-up us", "target us", "10 changed us", "memory MiB", "build s")
    print("  " + "".join(f"{column:>15}" for column in columns))
    results = []
    for size in sizes:
        completed = subprocess.run(
            [sys.executable, "-m", "bench.routing", str(size)], capture_output=True, text=True, check=False
        )
        if completed.returncode:
            raise BenchError(f"a routing table of {size:,} chunks could not be measured: {completed.stderr}")
        result = json.loads(completed.stdout)
        results.append(result)
        print(
            f"  {size:15,}{result['look_up_us']:15.2f}{result['target_us']:15.2f}{result['refresh_us']:15,.0f}"
            f"{result['memory_bytes'] / (1 << 20):15,.1f}{result['build_seconds']:15.2f}",
            flush=True,
        )
    return results


def measure(size: int) -> dict[str, Any]:
    """Measure a table of ``size`` chunks in this process."""
    collection = ShardedCollection(
        Namespace("bench", "documents"), UUID(int=1), ObjectId(), _CREATED, ShardKeyPattern.from_mapping({"key": 1})
    )
    memory_before = resident_bytes()
    table, build_seconds = _build(collection, size)
    memory_bytes = resident_bytes() - memory_before
    return {
        "chunks": size,
        "look_up_us": _look_up_us(table, size),
        "target_us": _target_us(table, size),
        "refresh_us": _refresh_us(table, size),
        "changed_chunks": min(size, CHANGED_CHUNKS),
        "memory_bytes": memory_bytes,
        "build_seconds": build_seconds,
    }


def _build(collection: ShardedCollection, size: int) -> tuple[RoutingTable, float]:
    """Build a table from documents of the catalog as they arrive, and measure the time without making them."""
    builder = RoutingTableBuilder(collection)
    documents = map(_document, chunks(size))
    seconds = 0.0
    while batch := list(islice(documents, _BATCH)):
        started = process_time()
        builder.add(read_placements(batch))
        seconds += process_time() - started
    started = process_time()
    table = builder.finish()
    return table, seconds + process_time() - started


def _document(chunk: ChunkPlacement) -> bytes:
    """Return a document of ``config.chunks``."""
    ((moved, shard),) = chunk.history
    return bson.encode(
        {
            "_id": ObjectId(),
            "uuid": _UUID,
            "min": raw_document(chunk.min),
            "max": raw_document(chunk.max),
            "shard": chunk.shard,
            "lastmod": unpack_timestamp(chunk.version),
            "history": [{"validAfter": unpack_timestamp(moved), "shard": shard}],
        }
    )


def chunks(count: int) -> Iterator[ChunkPlacement]:
    """Yield chunks that cover all keys, in order, distributed over `SHARDS`, each with a history of one move."""
    moved = pack_timestamp(Timestamp(1_700_000_100, 1))
    for number in range(count):
        low = bound(number, count)
        shard = SHARDS[number % len(SHARDS)]
        yield ChunkPlacement(low, bound(number + 1, count), shard, (number + 1) << 32, ((moved, shard),))


def bound(number: int, count: int) -> bytes:
    """Return the lower bound of a chunk as a document; MaxKey for the number after the last chunk."""
    key: Any = number * _KEYS_PER_CHUNK
    if number == 0:
        key = bson.MinKey()
    elif number == count:
        key = bson.MaxKey()
    return bson.encode({"key": key})


def _look_up_us(table: RoutingTable, size: int) -> float:
    """Measure a look-up of an encoded key."""
    numbers = random.Random(_SEED)
    pattern = table.key_pattern
    keys = [
        pattern.key_bytes(bson.encode({"key": numbers.randrange(size * _KEYS_PER_CHUNK)})) for _ in range(_LOOK_UPS)
    ]
    started = process_time()
    for key in keys:
        table.shard_for_key(key)
    return (process_time() - started) / _LOOK_UPS * 1e6


def _target_us(table: RoutingTable, size: int) -> float:
    """Measure the way from the raw filter of a point find to the shard, which a router needs for each find."""
    numbers = random.Random(_SEED)
    filters = [bson.encode({"key": numbers.randrange(size * _KEYS_PER_CHUNK)}) for _ in range(_LOOK_UPS)]
    started = process_time()
    for each in filters:
        target_filter(each, table)
    return (process_time() - started) / _LOOK_UPS * 1e6


def _refresh_us(table: RoutingTable, size: int) -> float:
    """Measure building a new table after ten chunks have moved; the fastest of several runs, to exclude noise."""
    numbers = random.Random(_SEED)
    count = min(size, CHANGED_CHUNKS)
    fastest = float("inf")
    for _ in range(_REFRESHES):
        version = table.collection_version.packed
        changed = [
            ChunkPlacement(
                bound(number, size), bound(number + 1, size), numbers.choice(SHARDS), version + (position << 32), ()
            )
            for position, number in enumerate(sorted(numbers.sample(range(size), count)), 1)
        ]
        started = process_time()
        table = table.with_changed_chunks(changed)
        fastest = min(fastest, process_time() - started)
    return fastest * 1e6


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))))
