"""A genuine MongoDB cluster from the same mongod, without a mongos: its shard servers carry the router's code."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import bson

from bench.load import create_indexes, insert_documents
from bench.mongods import primary_mongod
from bench.targets import Target
from bench.workloads import (
    CLUSTER_COMMANDS,
    DATABASE,
    READ_COLLECTION,
    SHARD_KEY,
    SPLIT_AT,
    WRITE_COLLECTION,
)
from deploy.mongod import connect
from deploy.ports import PortReservation
from deploy.topology import ProcessPlan, Role

_MAJORITY: Final[dict[str, Any]] = {"writeConcern": {"w": "majority"}}
_COMMAND_SECONDS: Final = 120.0


@contextmanager
def genuine_cluster(mongod: str, directory: Path, *, cache_gb: float) -> Iterator[Target]:
    """Run a config server and two shard servers with the data; the target is the first shard server.

    Raises:
        BenchError: it could not be set up.
    """
    with PortReservation() as ports, ExitStack() as processes:
        plans = {
            role: ProcessPlan(f"genuine.{role}", Role.MONGOD, ports.hold_free(), f"genuine-{role}")
            for role in ("config", "shard0", "shard1")
        }
        pids = {}
        for role, plan in plans.items():
            ports.release(plan.port)
            option = "--configsvr" if role == "config" else "--shardsvr"
            pids[role] = processes.enter_context(primary_mongod(mongod, plan, directory / role, cache_gb, option))
        _join(plans)
        _load(plans)
        yield Target(
            "genuine",
            plans["shard0"].address,
            CLUSTER_COMMANDS,
            {"router and mongod": (pids["shard0"],), "mongod": (pids["shard1"],)},
        )


def _join(plans: dict[str, ProcessPlan]) -> None:
    """Make a cluster of them, with the collections sharded and half of each on the second shard."""
    with (
        connect(plans["config"].address, _COMMAND_SECONDS) as config,
        connect(plans["shard0"].address, _COMMAND_SECONDS) as shard,
    ):
        for role in ("shard0", "shard1"):
            host = f"{plans[role].replica_set}/{plans[role].address}"
            config.admin.command("_configsvrAddShard", host, name=role, **_MAJORITY)
        created = config.admin.command("_configsvrCreateDatabase", DATABASE, primaryShardId="shard0", **_MAJORITY)
        for collection in (READ_COLLECTION, WRITE_COLLECTION):
            shard[DATABASE].command(
                "_shardsvrCreateCollection",
                collection,
                shardKey=SHARD_KEY,
                databaseVersion=created["databaseVersion"],
                **_MAJORITY,
            )
            config.admin.command(
                "_configsvrMoveRange",
                f"{DATABASE}.{collection}",
                toShard="shard1",
                min={"key": SPLIT_AT},
                max={"key": bson.MaxKey()},
                **_MAJORITY,
            )


def _load(plans: dict[str, ProcessPlan]) -> None:
    """There is no router for createIndexes: each shard is told directly."""
    for role in ("shard0", "shard1"):
        with connect(plans[role].address, _COMMAND_SECONDS) as client:
            create_indexes(client)
    with connect(plans["shard0"].address, _COMMAND_SECONDS) as client:
        insert_documents(client, CLUSTER_COMMANDS)
