"""``reshardCollection``: its throughput compared with a raw copy of the same documents, and the wait of writers.

All documents are on one shard by ``key``. They are resharded by the hash of ``key``, so that half of them move to the
other shard. A client's updates by ``key`` have the whole shard key before and after.
"""

import argparse
from pathlib import Path
from typing import Any, Final

from bson import Int64, MaxKey, MinKey

from bench.loadgen import BenchError, LoadGenerator
from bench.migration.clusters import MOVE_SECONDS, MovingCluster, our_moving_cluster, run_on
from bench.migration.data import DOCUMENT_BYTES, KEPT_DOCUMENTS
from bench.migration.load import move_under_load, writes_within
from bench.migration.rate import Move, measured, prepare, raw_copy
from bench.migration.report import pause_table, rate_table
from bench.workloads import DATABASE
from shardwright.deploy.mongod import connect

DOCUMENTS_MAX: Final = 100_000

_RAW_COPY: Final = "raw copy"
_RESHARDED: Final = "resharded"
_LOADED: Final = "loaded"
_COMMAND_SECONDS: Final = 120.0


def measure_resharding(options: argparse.Namespace, mongod: str, directory: Path) -> dict[str, Any]:
    """Make the measurements, print them as tables and return the document for the results."""
    documents = min(options.documents, DOCUMENTS_MAX)
    generator = LoadGenerator(directory)
    moves: dict[str, list[Move]] = {_RAW_COPY: [], _RESHARDED: []}
    print("resharding: starting shardwright", flush=True)
    with our_moving_cluster(mongod, directory / "resharding", cache_gb=options.cache_gb) as cluster:
        for number in range(options.rounds):
            collection = f"resharded{number}"
            prepare(cluster, collection, documents)
            moves[_RAW_COPY].append(raw_copy(cluster, collection, documents))
            moves[_RESHARDED].append(_reshard(cluster, collection, documents))
        print(rate_table(documents, DOCUMENT_BYTES, moves), flush=True)
        plan = writes_within(cluster.target.dialect, _LOADED, documents)
        loaded = move_under_load(generator, cluster, _LOADED, documents, plan, seconds=options.seconds, change=_reshard)
        print(pause_table("updates of resharded documents", documents, {cluster.target.name: loaded}), flush=True)
    return {
        "documents": documents,
        "document_bytes": DOCUMENT_BYTES,
        "rate": {what: [each.to_document() for each in rounds] for what, rounds in moves.items()},
        "pause": loaded.to_document(),
    }


def _reshard(cluster: MovingCluster, collection: str, documents: int) -> Move:
    """Reshard a collection, and check that all documents are there, and half of them on the other shard."""
    halves = [
        {"recipientShardId": "shard1", "min": {"key": MinKey()}, "max": {"key": Int64(0)}},
        {"recipientShardId": "shard0", "min": {"key": Int64(0)}, "max": {"key": MaxKey()}},
    ]
    command: dict[str, Any] = {"reshardCollection": f"{DATABASE}.{collection}", "key": {"key": "hashed"}}
    command["_presetReshardedChunks"] = halves
    total = documents + KEPT_DOCUMENTS
    moved = measured(cluster, total, lambda: run_on(cluster.target.address, command, seconds=MOVE_SECONDS))
    counts = []
    for address in cluster.mongods:
        with connect(address, _COMMAND_SECONDS) as client:
            counts.append(client[DATABASE][collection].estimated_document_count())
    if sum(counts) != total or min(counts) < total // 3:
        raise BenchError(f"{total:,} documents were resharded, and the shards have {counts}")
    return moved
