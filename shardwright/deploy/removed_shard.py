"""Removing a shard from a running local cluster."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from shardwright.deploy.cluster_state import ClusterState
from shardwright.deploy.errors import DeployError
from shardwright.deploy.layout import Layout
from shardwright.deploy.progress import progress_bar
from shardwright.deploy.shard_parts import Client, listed_shards, only_in, router, stop_and_delete
from shardwright.deploy.steps import Steps
from shardwright.deploy.supervisor import Supervisor

POLL_SECONDS: Final = 0.5
"""Interval between polls of a draining shard."""


def remove_shard(layout: Layout, state: ClusterState, shard: str, steps: Steps) -> None:
    """Drain a shard, remove it from the cluster, and stop its processes. It can be repeated after an interruption.

    Raises:
        DeployError: there is no such shard, or something is left on it that does not move by itself.
    """
    removed = only_in(state.topology, state.topology.without_shard(shard), shard)
    with router(layout, state) as client:
        _drain(client, shard, steps, layout)
    supervisor = Supervisor(layout, state)
    supervisor.find_unrecorded()
    with steps.step(f"stopping {shard}"):
        stop_and_delete(layout, supervisor, removed)
    layout.save(replace(state, topology=state.topology.without_shard(shard), added=state.added - {shard}))


def _drain(client: Client, shard: str, steps: Steps, layout: Layout) -> None:
    """Repeat ``removeShard`` until the shard is removed, and show the number of moved chunks."""
    if shard not in listed_shards(client):
        return  # an earlier command was interrupted after removing the shard, or before adding it
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
                _check_can_go_on(client, shard, reply, layout)
            if not left and reply["dbsToMove"]:
                _move_databases(client, shard, reply["dbsToMove"], steps)
            else:
                time.sleep(POLL_SECONDS)
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


def _check_can_go_on(client: Client, shard: str, reply: dict[str, Any], layout: Layout) -> None:
    """Check that draining can continue without the user.

    Raises:
        DeployError: the balancer is off, or only jumbo chunks are left. The message has the remedy.
    """
    remaining = reply["remaining"]
    if remaining["chunks"] == remaining["jumboChunks"]:
        raise DeployError(f"all chunks left on {shard} are jumbo: move them with moveChunk and forceJumbo")
    if client.admin.command("balancerStatus")["mode"] != "full":
        start = layout.command("balancer", "start")
        raise DeployError(f"{shard} is draining, but the balancer is off: `{start}`")
