"""Functions shared by adding and removing a shard of a running local cluster."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from shardwright.deploy.cluster_state import ClusterState
from shardwright.deploy.errors import DeployError, reason
from shardwright.deploy.layout import Layout
from shardwright.deploy.supervisor import STOP_ORDER, Supervisor
from shardwright.deploy.topology import Topology

Client = MongoClient[dict[str, Any]]


@contextmanager
def router(layout: Layout, state: ClusterState) -> Iterator[Client]:
    """Connect a client to the cluster, and report its errors as `DeployError`."""
    try:
        with Client(state.topology.uri, **layout.log_in(state)) as client:
            yield client
    except PyMongoError as error:
        raise DeployError(f"the cluster refused: {reason(error)}") from error


def listed_shards(client: Client) -> list[str]:
    """Return the names of the shards of the cluster."""
    return [each["_id"] for each in client.admin.command("listShards")["shards"]]


def only_in(whole: Topology, rest: Topology, shard: str | None = None) -> Topology:
    """Return the processes of a cluster that another one does not have."""
    if shard is not None:
        whole.of_shard(shard)
    return replace(whole, processes=tuple(plan for plan in whole.processes if plan not in rest.processes))


def stop_and_delete(layout: Layout, supervisor: Supervisor, part: Topology) -> None:
    """Stop the processes of a shard, and delete their data."""
    for role in STOP_ORDER:
        supervisor.stop(part.of_role(role))
    for plan in part.processes:
        shutil.rmtree(layout.data(plan.name), ignore_errors=True)
