"""Adding a shard to a running local cluster, and removing one."""

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from shardwright.deploy.errors import DeployError, reason
from shardwright.deploy.layout import ClusterState, Layout
from shardwright.deploy.ports import PortReservation
from shardwright.deploy.progress import progress_bar
from shardwright.deploy.start import start_processes
from shardwright.deploy.steps import Steps
from shardwright.deploy.supervisor import STOP_ORDER, Supervisor
from shardwright.deploy.topology import Topology

Client = MongoClient[dict[str, Any]]

POLL_SECONDS: Final = 0.5
"""Between questions about what is left on a draining shard."""


def add_shard(layout: Layout, state: ClusterState, members: int, steps: Steps, deadline: float) -> str:
    """Start a replica set with its daemons and add it to the cluster; returns the name of the shard.

    Raises:
        DeployError: the shard cannot be started or added; its processes are stopped again, and its data are removed.
    """
    with PortReservation() as ports:
        topology = state.topology.with_shard(members, ports.hold_free_run)
        added = _only_in(topology, state.topology)
        (shard,) = added.shards
        whole = replace(state, topology=topology)
        layout.create(whole)
        supervisor = Supervisor(layout, whole)
        try:
            start_processes(added, state.workers, supervisor, ports, steps, deadline, layout.log_in(state))
            with steps.step(f"adding {shard['_id']}"), _router(layout, state) as client:
                client.admin.command("addShard", shard["host"], name=shard["_id"])
            layout.save(whole)
        except BaseException:
            _stop(layout, supervisor, added)
            raise
    return shard["_id"]


def remove_shard(layout: Layout, state: ClusterState, shard: str, steps: Steps) -> None:
    """Drain a shard, remove it from the cluster, and stop its processes. If this is interrupted, it can be repeated.

    Raises:
        DeployError: there is no such shard, or something is left on it that does not move by itself.
    """
    removed = _only_in(state.topology, state.topology.without_shard(shard), shard)
    with _router(layout, state) as client:
        _drain(client, shard, steps)
    supervisor = Supervisor(layout, state)
    supervisor.find_unrecorded()
    with steps.step(f"stopping {shard}"):
        _stop(layout, supervisor, removed)
    layout.save(replace(state, topology=state.topology.without_shard(shard)))


def _drain(client: Client, shard: str, steps: Steps) -> None:
    """Repeat ``removeShard`` until the shard is removed, and show how many chunks have been moved away."""
    if not any(each["_id"] == shard for each in client.admin.command("listShards")["shards"]):
        return  # removed by an earlier command that was interrupted
    reply = client.admin.command("removeShard", shard)
    if reply["state"] == "started":
        steps.say(f"{shard} is draining")
        reply = client.admin.command("removeShard", shard)
    if reply["state"] == "completed":
        return
    chunks = reply["remaining"]["chunks"]
    with progress_bar("chunks moved", chunks) as bar:
        while reply["state"] == "ongoing":
            left = reply["remaining"]["chunks"]
            bar.advance(chunks - left)
            chunks = left
            if left:
                _check_can_go_on(client, shard, reply)
                time.sleep(POLL_SECONDS)
            else:
                _move_databases(client, shard, reply["dbsToMove"], steps)
            reply = client.admin.command("removeShard", shard)
        bar.advance(chunks)


def _move_databases(client: Client, shard: str, databases: Sequence[str], steps: Steps) -> None:
    """Move databases whose primary shard is draining to other shards, evenly."""
    shards = [each["_id"] for each in client.admin.command("listShards")["shards"] if not each.get("draining")]
    counts = {name: client.config.databases.count_documents({"primary": name}) for name in shards}
    for database in databases:
        to = min(counts, key=lambda name: (counts[name], name))
        with steps.step(f"moving the database {database} from {shard} to {to}"):
            client.admin.command("movePrimary", database, to=to)
        counts[to] += 1


def _check_can_go_on(client: Client, shard: str, reply: dict[str, Any]) -> None:
    """Report what the user has to do, if nothing else will empty the shard.

    Raises:
        DeployError: the balancer is off, or only jumbo chunks are left.
    """
    remaining = reply["remaining"]
    if remaining["chunks"] == remaining["jumboChunks"]:
        raise DeployError(f"all chunks left on {shard} are jumbo: move them with moveChunk and forceJumbo")
    if client.admin.command("balancerStatus")["mode"] != "full":
        raise DeployError(f"{shard} is draining, but the balancer is off: `shardwright balancer start`")


@contextmanager
def _router(layout: Layout, state: ClusterState) -> Iterator[Client]:
    try:
        with Client(state.topology.uri, **layout.log_in(state)) as client:
            yield client
    except PyMongoError as error:
        raise DeployError(f"the cluster refused: {reason(error)}") from error


def _only_in(whole: Topology, rest: Topology, shard: str | None = None) -> Topology:
    """The part of a cluster that another one does not have.

    Raises:
        DeployError: there is no such shard.
    """
    if shard is not None:
        whole.of_shard(shard)
    return replace(whole, processes=tuple(plan for plan in whole.processes if plan not in rest.processes))


def _stop(layout: Layout, supervisor: Supervisor, part: Topology) -> None:
    for role in STOP_ORDER:
        supervisor.stop(part.of_role(role))
    for plan in part.processes:
        shutil.rmtree(layout.data(plan.name), ignore_errors=True)
