"""``movePrimary``: its throughput compared with a raw copy of the documents, and how long its end delays writers."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bench.loadgen import BenchError, LoadGenerator
from bench.migration.clusters import MOVE_SECONDS, MovingCluster, our_moving_cluster, run_on
from bench.migration.data import DOCUMENT_BYTES, KEPT_DOCUMENTS
from bench.migration.load import move_under_load, writes_within
from bench.migration.rate import Move, measured, prepare, raw_copy
from bench.migration.report import pause_table, rate_table
from bench.workloads import DATABASE, SHARD_KEY
from shardwright.deploy.mongod import connect

_RAW_COPY: Final = "raw copy"
_MOVED: Final = "moved"
_LOADED: Final = "loaded"
_COMMAND_SECONDS: Final = 120.0


def measure_move_primary(options: argparse.Namespace, mongod: str, directory: Path) -> dict[str, Any]:
    """Make the measurements, print them as tables and return the document for the results."""
    documents = options.documents
    generator = LoadGenerator(directory)
    moves: dict[str, list[Move]] = {_RAW_COPY: [], _MOVED: []}
    print("movePrimary: starting shardwright", flush=True)
    with our_moving_cluster(mongod, directory / "moved", cache_gb=options.cache_gb) as sharded:
        cluster = replace(sharded, shard_collection=lambda collection: _create(sharded, collection))
        for number in range(options.rounds):
            collection = f"moved{number}"
            prepare(cluster, collection, documents)
            moves[_RAW_COPY].append(raw_copy(cluster, collection, documents))
            moves[_MOVED].append(_move_database(cluster, collection, documents))
        print(rate_table(documents, DOCUMENT_BYTES, moves), flush=True)
        plan = writes_within(cluster.target.dialect, _LOADED, documents)
        loaded = move_under_load(
            generator, cluster, _LOADED, documents, plan, seconds=options.seconds, change=_move_database
        )
        print(pause_table("updates in a database that moves", documents, {cluster.target.name: loaded}), flush=True)
    return {
        "documents": documents,
        "document_bytes": DOCUMENT_BYTES,
        "rate": {what: [each.to_document() for each in rounds] for what, rounds in moves.items()},
        "pause": loaded.to_document(),
    }


def _create(cluster: MovingCluster, collection: str) -> None:
    """Replace the database by one on the donor with one unsharded collection, which has the index of a sharded one."""
    router = cluster.target.address
    with connect(router, _COMMAND_SECONDS) as client:
        client.drop_database(DATABASE)
        run_on(router, {"enableSharding": DATABASE, "primaryShard": "shard0"})
        client[DATABASE][collection].create_index(list(SHARD_KEY.items()))


def _move_database(cluster: MovingCluster, collection: str, documents: int) -> Move:
    """Move the database, and check that all documents have arrived."""
    total = documents + KEPT_DOCUMENTS
    command = {"movePrimary": DATABASE, "to": "shard1"}
    moved = measured(cluster, total, lambda: run_on(cluster.target.address, command, seconds=MOVE_SECONDS))
    counts = []
    for address in cluster.mongods:
        with connect(address, _COMMAND_SECONDS) as client:
            counts.append(client[DATABASE][collection].estimated_document_count())
    if counts != [0, total]:
        raise BenchError(f"{total:,} documents were moved, and the shards have {counts}")
    return moved
