"""The time until the balancer has evened out a cluster of four shards with all data on one of them.

Whatever the number of documents, there are as many chunks as in 10 GB with the default chunk size of 128 MB.
"""

import argparse
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from bench.cluster import OurCluster, running_cluster
from bench.loadgen import BenchError
from bench.migration.clusters import run_on
from bench.migration.data import DOCUMENT_BYTES, KEPT_DOCUMENTS, insert_documents
from bench.targets import cpu_seconds
from bench.workloads import DATABASE, SHARD_KEY
from shardwright.deploy.mongod import connect

SHARDS: Final = 4

_CHUNKS: Final = 80
_COLLECTION: Final = "uneven"
_NAMESPACE: Final = f"{DATABASE}.{_COLLECTION}"
_COMMAND_SECONDS: Final = 120.0
_EVEN_SECONDS_MAX: Final = 14_400.0
_POLL_SECONDS: Final = 0.5


def measure_evening(options: argparse.Namespace, mongod: str, directory: Path) -> dict[str, Any]:
    """Make the measurement, print it and return the document for the results."""
    documents = options.documents
    print(f"evening: starting a cluster of {SHARDS} shards", flush=True)
    with running_cluster(mongod, directory / "evening", cache_gb=options.cache_gb, shards=SHARDS) as cluster:
        router = cluster.address("router.0")
        chunk_megabytes = max(1, documents * DOCUMENT_BYTES // (_CHUNKS << 20))
        run_on(router, {"enableSharding": DATABASE, "primaryShard": "shard0"})
        run_on(router, {"shardCollection": _NAMESPACE, "key": SHARD_KEY})
        run_on(router, {"configureCollectionBalancing": _NAMESPACE, "chunkSize": chunk_megabytes})
        insert_documents(cluster.address("shard0.0.mongod"), _COLLECTION, documents)
        result = _even_out(cluster, documents + KEPT_DOCUMENTS, chunk_megabytes)
    print(
        f"  {result['documents']:,} documents of {DOCUMENT_BYTES:,} bytes, chunks of {chunk_megabytes} MB: even after"
        f" {result['seconds']:.1f} s and {result['moves']} moves,"
        f" {result['moved_bytes'] / result['seconds'] / 1e6:.1f} MB/s; documents by shard {result['by_shard']};"
        f" CPU s: {', '.join(f'{role} {seconds:.1f}' for role, seconds in result['cpu_seconds'].items())}",
        flush=True,
    )
    return result


def _even_out(cluster: OurCluster, documents: int, chunk_megabytes: int) -> dict[str, Any]:
    with connect(cluster.address("router.0"), _COMMAND_SECONDS) as client:
        try:
            before, started = _cpu_seconds(cluster), time.perf_counter()
            client.admin.command("balancerStart")
            _wait_even(client)
            seconds = time.perf_counter() - started
            used = {role: after - before[role] for role, after in _cpu_seconds(cluster).items()}
            client.admin.command("balancerStop")
            found = client[DATABASE][_COLLECTION].count_documents({})
            by_shard = _documents_by_shard(client)
            moves = client.config.changelog.count_documents({"what": "moveChunk.commit", "ns": _NAMESPACE})
        except PyMongoError as error:
            raise BenchError(f"the cluster could not be evened out: {error}") from error
    if found != documents:
        raise BenchError(f"{found:,} documents are left of {documents:,}")
    return {
        "documents": documents,
        "document_bytes": DOCUMENT_BYTES,
        "chunk_megabytes": chunk_megabytes,
        "seconds": seconds,
        "moves": moves,
        "moved_bytes": sum(count for shard, count in by_shard.items() if shard != "shard0") * DOCUMENT_BYTES,
        "by_shard": by_shard,
        "cpu_seconds": used,
    }


def _wait_even(client: MongoClient[dict[str, Any]]) -> None:
    """Wait until the balancer has nothing left to do."""
    deadline = time.monotonic() + _EVEN_SECONDS_MAX
    while not client.admin.command("balancerCollectionStatus", _NAMESPACE)["balancerCompliant"]:
        if time.monotonic() > deadline:
            raise BenchError(f"the cluster is not even after {_EVEN_SECONDS_MAX:.0f} s")
        time.sleep(_POLL_SECONDS)


def _documents_by_shard(client: MongoClient[dict[str, Any]]) -> dict[str, int]:
    """Count the documents that each shard owns, without orphans."""
    entry = client.config.collections.find_one({"_id": _NAMESPACE})
    assert entry is not None
    counts = Counter[str]()
    for chunk in client.config.chunks.find({"uuid": entry["uuid"]}):
        bounds = {"key": {"$gte": chunk["min"]["key"], "$lt": chunk["max"]["key"]}}
        counts[chunk["shard"]] += client[DATABASE][_COLLECTION].count_documents(bounds)
    return dict(sorted(counts.items()))


def _cpu_seconds(cluster: OurCluster) -> dict[str, float]:
    processes = {role: cluster.pids(role) for role in ("shardd", "mongod")}
    processes["configd"] = (cluster.pid("config.0.configd"),)
    return {role: sum(map(cpu_seconds, pids)) for role, pids in processes.items()}
