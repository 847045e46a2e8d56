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
    """A shard may have been added to the cluster, or may still be."""


def add_shard(layout: Layout, state: ClusterState, members: int, steps: Steps, deadline: float) -> str:
    """Start a replica set with its daemons and add it to the cluster; returns the name of the shard.

    The state file has the shard from the beginning, so that an attempt that was interrupted, whenever that was, can be
    continued by the next one, by `remove_shard`, and by ``up``.

    Raises:
        DeployError: the shard cannot be started, or the cluster refuses it: then its processes are stopped again, and
            its data are removed, unless an earlier attempt may have added it. Or the outcome is not known.
    """
    if not state.added:  # the file was written by an older version, or by an `up` that was killed
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
    """A bar of what there is to be done: processes that become ready, a primary, and the shard in the cluster."""
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
    """Start the processes of a shard; those that an earlier attempt has started are restarted."""
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
        DeployError: the cluster refuses it.
        UnknownOutcomeError: this was interrupted, or there was no answer.
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
    """Whether a shard has certainly not been added."""
    try:
        return isinstance(error, OperationFailure) and shard not in listed_shards(client)
    except PyMongoError:
        return False
