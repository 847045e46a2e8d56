"""Collections with many chunks in our cluster: a point find should cost the same however large the routing table is.

A million splits would take hours, so the chunks are written directly into the catalog, as splits would have left them,
and the daemons refresh.
"""

import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

import bson
from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions
from bson.timestamp import Timestamp
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from bench.cluster import OurCluster
from bench.loadgen import BenchError
from bench.workloads import DATABASE, DOCUMENTS, SHARD_KEY, SPLIT_AT
from shardwright.deploy.mongod import connect

_COMMAND_SECONDS: Final = 600.0
_SHARD: Final = "shard1"
_PERSIST_SECONDS_MAX: Final = 900.0
_INSERT_BATCH: Final = 20_000


def collection_name(count: int) -> str:
    """Return the name of the collection with ``count`` chunks."""
    return f"chunks{count}"


def create_collections(cluster: OurCluster, counts: Sequence[int]) -> None:
    """Create a collection for each number of chunks, with the documents for point finds."""
    try:
        with (
            connect(cluster.address("router.0"), _COMMAND_SECONDS) as router,
            connect(cluster.address("config.0.mongod"), _COMMAND_SECONDS) as config,
        ):
            for count in counts:
                namespace = f"{DATABASE}.{collection_name(count)}"
                router.admin.command("shardCollection", namespace, key=SHARD_KEY)
                router.admin.command("moveChunk", namespace, find={"key": 0}, to=_SHARD)
                _write_chunks(config, namespace, count)
                router.admin.command("flushRouterConfig")
                documents = [{"key": key} for key in range(SPLIT_AT, DOCUMENTS)]
                router[DATABASE][collection_name(count)].insert_many(documents, ordered=False)
        _wait_until_persisted(cluster, counts)
    except PyMongoError as error:
        raise BenchError(f"a collection with many chunks could not be created: {error}") from error


def _wait_until_persisted(cluster: OurCluster, counts: Sequence[int]) -> None:
    """Wait until the shard has persisted the tables on its mongod, which it does in the background."""
    deadline = time.monotonic() + _PERSIST_SECONDS_MAX
    with connect(cluster.address(f"{_SHARD}.0.mongod"), _COMMAND_SECONDS) as mongod:
        for count in counts:
            persisted = mongod["config"][f"cache.chunks.{DATABASE}.{collection_name(count)}"]
            while persisted.estimated_document_count() < count:
                if time.monotonic() > deadline:
                    raise BenchError(f"{_SHARD} did not persist a table of {count:,} chunks in time")
                time.sleep(1)


def _write_chunks(config: MongoClient[dict[str, Any]], namespace: str, count: int) -> None:
    """Replace the only chunk by ``count`` chunks with higher versions."""
    catalog = config.get_database("config", codec_options=CodecOptions(uuid_representation=UuidRepresentation.STANDARD))
    collection = catalog["collections"].find_one({"_id": namespace})
    assert collection is not None
    only = catalog["chunks"].find_one_and_delete({"uuid": collection["uuid"]})
    assert only is not None
    chunks = _chunks(only, count)
    while batch := list(islice(chunks, _INSERT_BATCH)):
        catalog["chunks"].insert_many(batch, ordered=False)


def _chunks(like: dict[str, Any], count: int) -> Iterator[dict[str, Any]]:
    """Yield ``count`` chunks that divide all keys evenly, otherwise like the given one."""
    major = like["lastmod"].time + 1
    bounds = [bson.MinKey(), *(number * DOCUMENTS / count for number in range(1, count)), bson.MaxKey()]
    for number in range(count):
        yield {
            **like,
            "_id": bson.ObjectId(),
            "min": {"key": bounds[number]},
            "max": {"key": bounds[number + 1]},
            "lastmod": Timestamp(major, number + 1),
        }
