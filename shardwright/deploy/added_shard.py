"""Adding a shard to a running local cluster."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from pymongo.errors import OperationFailure, PyMongoError

from shardwright.deploy.cluster_state import ClusterState
from shardwright.deploy.errors import DeployError
from shardwright.deploy.layout import Layout
from shardwright.deploy.ports import PortReservation
from shardwright.deploy.progress import progress_bar
from shardwright.deploy.shard_parts import Client, listed_shards, only_in, router, stop_and_delete
from shardwright.deploy.start import start_processes
from shardwright.deploy.steps import BarSteps, Steps
from shardwright.deploy.supervisor import STOP_ORDER, Supervisor
from shardwright.deploy.topology import Topology


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
            state = replace(state, added=frozenset(listed_shards(client)))
    with PortReservation() as ports:
        unfinished = next((each["_id"] for each in state.topology.shards if each["_id"] not in state.added), None)
        if unfinished is None:
            whole = replace(state, topology=state.topology.with_shard(members, ports.hold_free_run))
            added = only_in(whole.topology, state.topology)
            layout.save(whole)
        else:
            steps.say(f"going on with {unfinished}, which an earlier command has begun to add")
            whole, added = state, only_in(state.topology, state.topology.without_shard(unfinished))
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
        return isinstance(error, OperationFailure) and shard not in listed_shards(client)
    except PyMongoError:
        return False
