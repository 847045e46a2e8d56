"""Adding a shard to a running local cluster, and removing one."""

import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError

from shardwright.deploy.cluster_state import ClusterState
from shardwright.deploy.errors import DeployError, reason
from shardwright.deploy.layout import Layout
from shardwright.deploy.ports import PortReservation
from shardwright.deploy.steps import BarSteps, Steps, progress_bar
from shardwright.deploy.supervisor import STOP_ORDER, Supervisor
from shardwright.deploy.topology import Topology
from shardwright.deploy.up import start_processes

POLL_SECONDS: Final = 0.5
"""Interval between polls of a draining shard."""

Client = MongoClient[dict[str, Any]]


class UnknownOutcomeError(DeployError):
    """The shard may or may not have been added to the cluster, or the addition may still be running."""


def add_shard(layout: Layout, state: ClusterState, members: int, steps: Steps, deadline: float) -> str:
    """Start a replica set with its daemons, add it to the cluster, and return the name of the shard.

    The state file lists the shard from the beginning. After an interruption at any point, the next attempt,
    `remove_shard` or ``up`` can continue.

    Raises:
        DeployError: the shard cannot be started, or the cluster refuses it. Its processes are then stopped and its data
            removed, unless an earlier attempt may have added it.
        UnknownOutcomeError: the shard may have been added.
    """
    if not state.added:  # written by an older version, or by an `up` that was killed
        with router(layout, state) as client:
            state = replace(state, added=frozenset(_listed_shards(client)))
    with PortReservation() as ports:
        unfinished = next((each["_id"] for each in state.topology.shards if each["_id"] not in state.added), None)
        if unfinished is None:
            whole = replace(state, topology=state.topology.with_shard(members, ports.hold_free_run))
            added = _only_in(whole.topology, state.topology)
            layout.save(whole)
        else:
            steps.say(f"going on with {unfinished}, which an earlier command has begun to add")
            whole, added = state, _only_in(state.topology, state.topology.without_shard(unfinished))
        supervisor = Supervisor(layout, whole)
        try:
            with _progress(added, steps) as shown:
                _start(layout, whole, added, supervisor, ports, shown, deadline)
                _add(layout, whole, added, shown)
        except BaseException as error:
            if unfinished is None and not isinstance(error, UnknownOutcomeError):
                stop_and_delete(layout, supervisor, added)
                layout.save(state)
            raise
    (shard,) = added.shards
    layout.save(replace(whole, added=whole.added | {shard["_id"]}))
    return shard["_id"]


@contextmanager
def _progress(added: Topology, steps: Steps) -> Iterator[Steps]:
    """Show a progress bar over the processes that become ready, the election, and the shard in the cluster."""
    (shard,) = added.shards
    with progress_bar(f"adding {shard['_id']}", len(added.processes) + 2) as bar:
        yield BarSteps(steps, bar, is_alone=sys.stdout.isatty())


def _start(
    layout: Layout,
    whole: ClusterState,
    added: Topology,
    supervisor: Supervisor,
    ports: PortReservation,
    steps: Steps,
    deadline: float,
) -> None:
    """Start the processes of a shard, restarting those that an earlier attempt has started."""
    supervisor.find_unrecorded()
    for role in STOP_ORDER:
        supervisor.stop(added.of_role(role))
    for plan in added.processes:
        for port in plan.ports(whole.workers):
            ports.ensure_held(port)
    layout.create(whole)
    start_processes(added, whole, supervisor, ports, steps, deadline, layout.log_in(whole))


def _add(layout: Layout, whole: ClusterState, added: Topology, steps: Steps) -> None:
    """Add a shard to the cluster, unless it is there already.

    Raises:
        UnknownOutcomeError: the command was interrupted, or there was no answer.
    """
    (shard,) = added.shards
    with steps.step(f"adding {shard['_id']}"), router(layout, whole) as client:
        try:
            client.admin.command("addShard", shard["host"], name=shard["_id"])
            steps.advance()
        except (KeyboardInterrupt, PyMongoError) as error:
            if _is_refusal(client, shard["_id"], error):
                raise
            raise UnknownOutcomeError(
                f"it is not known whether {shard['_id']} was added: `{layout.command('add-shard')}` continues"
            ) from error


def _is_refusal(client: Client, shard: str, error: BaseException) -> bool:
    """Whether the shard has certainly not been added."""
    try:
        return isinstance(error, OperationFailure) and shard not in _listed_shards(client)
    except PyMongoError:
        return False


def remove_shard(layout: Layout, state: ClusterState, shard: str, steps: Steps) -> None:
    """Drain a shard, remove it from the cluster, and stop its processes. It can be repeated after an interruption.

    Raises:
        DeployError: there is no such shard, or something is left on it that does not move by itself.
    """
    removed = _only_in(state.topology, state.topology.without_shard(shard), shard)
    with router(layout, state) as client:
        _drain(client, shard, steps, layout)
    supervisor = Supervisor(layout, state)
    supervisor.find_unrecorded()
    with steps.step(f"stopping {shard}"):
        stop_and_delete(layout, supervisor, removed)
    layout.save(replace(state, topology=state.topology.without_shard(shard), added=state.added - {shard}))


def _drain(client: Client, shard: str, steps: Steps, layout: Layout) -> None:
    """Repeat ``removeShard`` until the shard is removed, and show the number of moved chunks."""
    if shard not in _listed_shards(client):
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


@contextmanager
def router(layout: Layout, state: ClusterState) -> Iterator[Client]:
    """Connect a client to the cluster, and report its errors as `DeployError`."""
    try:
        with Client(state.topology.uri, **layout.log_in(state)) as client:
            yield client
    except PyMongoError as error:
        raise DeployError(f"the cluster refused: {reason(error)}") from error


def _listed_shards(client: Client) -> list[str]:
    """Return the names of the shards of the cluster."""
    return [each["_id"] for each in client.admin.command("listShards")["shards"]]


def _only_in(whole: Topology, rest: Topology, shard: str | None = None) -> Topology:
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
