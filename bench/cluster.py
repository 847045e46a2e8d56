"""Our cluster with the data, started with the launcher."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pymongo.errors import PyMongoError

from bench.load import create_indexes, insert_documents
from bench.loadgen import BenchError
from bench.targets import Target
from bench.workloads import (
    DATABASE,
    MONGODB,
    SHARD_KEY,
    SHARDED_COLLECTIONS,
    SPLIT_AT,
)
from shardwright.deploy.cluster_state import DIAGNOSTIC_DATA
from shardwright.deploy.mongod import connect

_COMMAND_SECONDS: Final = 120.0


class OurCluster:
    """A running cluster.

    Attributes:
        document: the output of ``shardwright up --json``.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self._processes = {process["name"]: process for process in document["processes"]}

    def address(self, name: str) -> str:
        """Return ``host:port`` of a process."""
        return str(self._processes[name]["address"])

    def pid(self, name: str) -> int:
        """Return the pid of a process."""
        return int(self._processes[name]["pid"])

    def pids(self, role: str) -> tuple[int, ...]:
        """Return the processes of a role, without the config servers, which are not involved."""
        return tuple(
            process["pid"]
            for name, process in self._processes.items()
            if process["role"] == role and not name.startswith("config.")
        )

    @property
    def target(self) -> Target:
        """The target that leads through the router."""
        processes = {role: self.pids(role) for role in ("router", "shardd", "mongod")}
        addresses = self.document["metrics"]
        metrics = {
            role: tuple(address for name, address in addresses.items() if f".{role}" in f".{name}")
            for role in ("router", "shardd")
        }
        return Target("shardwright", self.address("router.0"), MONGODB, processes, metrics)


@contextmanager
def our_cluster(mongod: str, directory: Path, *, cache_gb: float) -> Iterator[OurCluster]:
    """Run a cluster of two shards with the data."""
    with running_cluster(mongod, directory, cache_gb=cache_gb) as cluster:
        _prepare(cluster.address("router.0"))
        yield cluster


@contextmanager
def running_cluster(
    mongod: str, directory: Path, *, cache_gb: float, shards: int = 2, more: Sequence[str] = ()
) -> Iterator[OurCluster]:
    """Run an empty cluster with a stopped balancer.

    Args:
        cache_gb: WiredTiger's cache of each mongod.
        more: further options of ``shardwright up``.
    """
    launcher = [sys.executable, "-m", "shardwright.deploy.cli"]
    options = ["--dir", str(directory), "--mongod", mongod, "--cache-gb", str(cache_gb), "--port", "0"]
    options += ["--set-parameter", f"{DIAGNOSTIC_DATA}=false", "--shards", str(shards), *more]
    up = subprocess.run([*launcher, "up", "--detach", "--json", *options], capture_output=True, text=True, check=False)
    if up.returncode:
        raise BenchError(up.stderr.strip())
    try:
        # As on the genuine cluster: only the benchmark should move anything.
        subprocess.run([*launcher, "balancer", "stop", "--dir", str(directory)], capture_output=True, check=True)
        yield OurCluster(json.loads(up.stdout))
    finally:
        subprocess.run([*launcher, "down", "--dir", str(directory)], capture_output=True, check=False)


def _prepare(router: str) -> None:
    with connect(router, _COMMAND_SECONDS) as client:
        try:
            client.admin.command("enableSharding", DATABASE, primaryShard="shard0")
            for collection in SHARDED_COLLECTIONS:
                shard_in_halves(client, f"{DATABASE}.{collection}")
            create_indexes(client)
        except PyMongoError as error:
            raise BenchError(f"the collections could not be sharded: {error}") from error
        insert_documents(client, MONGODB)


def shard_in_halves(client: Any, namespace: str) -> None:  # noqa: ANN401 - a MongoClient
    """Shard a new collection and move the upper half of the keys to the second shard."""
    client.admin.command("shardCollection", namespace, key=SHARD_KEY)
    client.admin.command("split", namespace, middle={"key": SPLIT_AT})
    client.admin.command("moveChunk", namespace, find={"key": SPLIT_AT}, to="shard1")
