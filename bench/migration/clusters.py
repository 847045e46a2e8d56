"""Clusters of two shards with the same interface, genuine and ours, for moves of ranges."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pymongo.errors import PyMongoError

from bench.cluster import running_cluster
from bench.genuine import genuine_servers
from bench.loadgen import BenchError
from bench.targets import Target
from bench.workloads import DATABASE, SHARD_KEY
from shardwright.deploy.mongod import connect

_COMMAND_SECONDS: Final = 120.0
MOVE_SECONDS: Final = 3600.0


@dataclass(frozen=True)
class MovingCluster:
    """A cluster without data.

    Attributes:
        mongods: addresses of the mongods of donor and recipient.
        servers: pids of these mongods, by description.
        daemons: pids of the daemons alongside, by description.
        shard_collection: shards a new collection, entirely on the donor.
        move_range: moves all keys from 0 to the given one to the recipient.
    """

    target: Target
    mongods: tuple[str, str]
    shard_collection: Callable[[str], None]
    move_range: Callable[[str, int], None]
    servers: Mapping[str, int]
    daemons: Mapping[str, int] = field(default_factory=dict)


@contextmanager
def genuine_moving_cluster(mongod: str, directory: Path, *, cache_gb: float) -> Iterator[MovingCluster]:
    """Run a config server and two shard servers."""
    with genuine_servers(mongod, directory, cache_gb=cache_gb) as servers:
        yield MovingCluster(
            servers.target,
            (servers.addresses["shard0"], servers.addresses["shard1"]),
            servers.shard_collection,
            lambda collection, end: servers.move_range(collection, {"key": 0}, {"key": end}),
            {"donor's mongod": servers.pids["shard0"], "recipient's mongod": servers.pids["shard1"]},
        )


@contextmanager
def our_moving_cluster(mongod: str, directory: Path, *, cache_gb: float) -> Iterator[MovingCluster]:
    """Run our cluster of two shards."""
    with running_cluster(mongod, directory, cache_gb=cache_gb) as cluster:
        router = cluster.address("router.0")
        run_on(router, {"enableSharding": DATABASE, "primaryShard": "shard0"})
        yield MovingCluster(
            cluster.target,
            (cluster.address("shard0.0.mongod"), cluster.address("shard1.0.mongod")),
            lambda collection: run_on(router, {"shardCollection": f"{DATABASE}.{collection}", "key": SHARD_KEY}),
            lambda collection, end: run_on(router, _move(collection, end), seconds=MOVE_SECONDS),
            {"donor's mongod": cluster.pid("shard0.0.mongod"), "recipient's mongod": cluster.pid("shard1.0.mongod")},
            {"donor": cluster.pid("shard0.0.shardd"), "recipient": cluster.pid("shard1.0.shardd")},
        )


def _move(collection: str, end: int) -> dict[str, Any]:
    bounds = {"min": {"key": 0}, "max": {"key": end}}
    return {"moveRange": f"{DATABASE}.{collection}", **bounds, "toShard": "shard1", "forceJumbo": True}


def run_on(router: str, command: dict[str, Any], *, seconds: float = _COMMAND_SECONDS) -> None:
    """Run a command on ``admin``."""
    with connect(router, seconds) as client:
        try:
            client.admin.command(command)
        except PyMongoError as error:
            raise BenchError(f"{next(iter(command))} failed: {error}") from error
