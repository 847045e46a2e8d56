"""A genuine MongoDB cluster from the same mongod, without a mongos: its shard servers contain the router's code."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import bson

from bench.load import create_indexes, insert_documents
from bench.mongods import primary_mongod
from bench.targets import Target
from bench.workloads import CLUSTER_COMMANDS, DATABASE, SHARD_KEY, SHARDED_COLLECTIONS, SPLIT_AT
from shardwright.deploy.mongod import connect
from shardwright.deploy.ports import PortReservation
from shardwright.deploy.topology import ProcessPlan, Role

_MAJORITY: Final[dict[str, Any]] = {"writeConcern": {"w": "majority"}}
_COMMAND_SECONDS: Final = 120.0
_MOVE_SECONDS: Final = 3600.0
_FORCE_MANUAL: Final = 1


@contextmanager
def genuine_cluster(mongod: str, directory: Path, *, cache_gb: float) -> Iterator[Target]:
    """Run a config server and two shard servers with the data; the target is the first shard server."""
    with genuine_servers(mongod, directory, cache_gb=cache_gb) as servers:
        for collection in SHARDED_COLLECTIONS:
            servers.shard_collection(collection)
            servers.move_range(collection, {"key": SPLIT_AT}, {"key": bson.MaxKey()})
        _load(servers)
        yield servers.target


class GenuineServers:
    """A config server and two shard servers that form a cluster.

    Args:
        addresses: ``host:port`` of ``config``, ``shard0`` and ``shard1``.
        pids: the pids of the same servers.
    """

    def __init__(self, addresses: Mapping[str, str], pids: Mapping[str, int]) -> None:
        self.addresses = addresses
        self.pids = pids

    @property
    def target(self) -> Target:
        """The target that leads through the genuine router code in the first shard server."""
        processes = {"router and mongod": (self.pids["shard0"],), "mongod": (self.pids["shard1"],)}
        return Target("genuine", self.addresses["shard0"], CLUSTER_COMMANDS, processes)

    def shard_collection(self, collection: str) -> None:
        """Shard a new collection, entirely on the first shard."""
        with connect(self.addresses["config"], _COMMAND_SECONDS) as config:
            created = config.admin.command("_configsvrCreateDatabase", DATABASE, primaryShardId="shard0", **_MAJORITY)
        with connect(self.addresses["shard0"], _COMMAND_SECONDS) as shard:
            shard[DATABASE].command(
                "_shardsvrCreateCollection",
                collection,
                shardKey=SHARD_KEY,
                databaseVersion=created["databaseVersion"],
                **_MAJORITY,
            )

    def move_range(self, collection: str, low: Mapping[str, Any], high: Mapping[str, Any]) -> None:
        """Move a range of any size to the second shard."""
        order = {
            "_configsvrMoveRange": f"{DATABASE}.{collection}",
            **{"toShard": "shard1", "min": low, "max": high, "forceJumbo": _FORCE_MANUAL},
            **_MAJORITY,
        }
        with connect(self.addresses["config"], _MOVE_SECONDS) as config:
            config.admin.command(order)


@contextmanager
def genuine_servers(mongod: str, directory: Path, *, cache_gb: float) -> Iterator[GenuineServers]:
    """Run the servers as an empty cluster."""
    with PortReservation() as ports, ExitStack() as processes:
        plans = {
            role: ProcessPlan(f"genuine.{role}", Role.MONGOD, ports.hold_free(), f"genuine-{role}")
            for role in ("config", "shard0", "shard1")
        }
        pids = {}
        for role, plan in plans.items():
            ports.release(*plan.ports())
            option = "--configsvr" if role == "config" else "--shardsvr"
            pids[role] = processes.enter_context(primary_mongod(mongod, plan, directory / role, cache_gb, option))
        with connect(plans["config"].address, _COMMAND_SECONDS) as config:
            # Only the measured moves should take place.
            config.admin.command("_configsvrBalancerStop", 1)
            for role in ("shard0", "shard1"):
                host = f"{plans[role].replica_set}/{plans[role].address}"
                config.admin.command("_configsvrAddShard", host, name=role, **_MAJORITY)
        yield GenuineServers({role: plan.address for role, plan in plans.items()}, pids)


def _load(servers: GenuineServers) -> None:
    """Load the data; createIndexes goes to each shard directly, because there is no router for it."""
    for role in ("shard0", "shard1"):
        with connect(servers.addresses[role], _COMMAND_SECONDS) as client:
            create_indexes(client)
    with connect(servers.addresses["shard0"], _COMMAND_SECONDS) as client:
        insert_documents(client, CLUSTER_COMMANDS)
