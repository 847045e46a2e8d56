"""A genuine MongoDB cluster with our routers in the place of its mongos.

The same mongod binary runs as config server (``--configsvr``) and as two shard servers (``--shardsvr``), each a replica
set of one member. They are joined by the commands that a mongos would send.
"""

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from bench.mongods import primary_mongod
from shardwright.deploy.ports import PortReservation
from shardwright.deploy.topology import LOOPBACK, ProcessPlan, Role
from tests.local_cluster import Client

SHARDS: Final = ("sh0", "sh1")
"""The names of the shards."""

_CONFIG: Final = "cfg"
_CACHE_GB: Final = 0.25
_START_SECONDS: Final = 60.0
_SELECTION_MS: Final = 5000
_MAJORITY: Final = {"w": "majority", "wtimeout": 60_000}


@dataclass(frozen=True)
class GenuineCluster:
    """A genuine cluster that is up.

    Attributes:
        config: ``host:port`` of the config server.
        shards: ``host:port`` of the server of each shard, by shard id.
        routers: ``host:port`` of our routers.
        metrics: ``host:port`` of the metrics endpoint of each router.
    """

    config: str
    shards: dict[str, str]
    routers: tuple[str, ...]
    metrics: tuple[str, ...]

    def uri(self, router: int = 0) -> str:
        """Connection string of one router."""
        return f"mongodb://{self.routers[router]}/"

    def client(self, router: int = 0, **options: Any) -> Client:  # noqa: ANN401 - whatever MongoClient takes
        """A new client of one router; close it."""
        return MongoClient(self.uri(router), directConnection=True, serverSelectionTimeoutMS=_SELECTION_MS, **options)

    def direct(self, address: str) -> Client:
        """A new client of a config or shard server; close it."""
        return MongoClient(f"mongodb://{address}/", directConnection=True)

    def connection_string(self, shard: str) -> str:
        """``set/host:port`` of a shard."""
        return f"{shard}/{self.shards[shard]}"


@contextmanager
def genuine_cluster(
    mongod: str, directory: Path, *, routers: int = 2, config_options: Sequence[str] = ()
) -> Iterator[GenuineCluster]:
    """Start a genuine cluster and routers of ours; every process is gone after the block.

    Args:
        mongod: the binary.
        directory: for data and logs.
        routers: how many routers.
        config_options: further options of the config server.
    """
    with PortReservation() as ports, ExitStack() as processes:
        plans = {name: ProcessPlan(name, Role.MONGOD, ports.hold_free(), name) for name in (_CONFIG, *SHARDS)}

        def start(name: str) -> None:
            ports.release(*plans[name].ports())
            options = ("--configsvr", *config_options) if name == _CONFIG else ("--shardsvr",)
            processes.enter_context(primary_mongod(mongod, plans[name], directory / name, _CACHE_GB, *options))

        with ThreadPoolExecutor() as starting:
            list(starting.map(start, plans))
        config = plans[_CONFIG].address
        for shard in SHARDS:
            _add_shard(config, shard, f"{shard}/{plans[shard].address}")
        addresses, metrics = [], []
        for number in range(routers):
            port, metrics_port = ports.hold_free(), ports.hold_free()
            ports.release(port)
            ports.release(metrics_port)
            log = directory / f"router.{number}.log"
            processes.enter_context(_router(f"{_CONFIG}/{config}", port, metrics_port, log))
            addresses.append(f"{LOOPBACK}:{port}")
            metrics.append(f"{LOOPBACK}:{metrics_port}")
        yield GenuineCluster(
            config, {shard: plans[shard].address for shard in SHARDS}, tuple(addresses), tuple(metrics)
        )


def _add_shard(config: str, name: str, host: str) -> None:
    with MongoClient[dict[str, Any]](f"mongodb://{config}/", directConnection=True) as client:
        client.admin.command({"_configsvrAddShard": host, "name": name, "writeConcern": _MAJORITY})


@contextmanager
def _router(configdb: str, port: int, metrics_port: int, log: Path) -> Iterator[None]:
    """Run a router, as one would run mongos; it serves when the block begins."""
    arguments = ["--configdb", configdb, "--port", str(port), "--metrics-port", str(metrics_port)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "shardwright.router.main", *arguments], stdout=output, stderr=output
        )
    try:
        _wait_serving(port)
        yield
    finally:
        process.kill()
        process.wait()


def _wait_serving(port: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    with MongoClient[dict[str, Any]](
        f"mongodb://{LOOPBACK}:{port}/", directConnection=True, serverSelectionTimeoutMS=1000
    ) as client:
        while True:
            try:
                client.admin.command("listShards")
            except PyMongoError:
                if time.monotonic() > deadline:
                    raise
            else:
                return
