"""Starting a cluster in order: mongods, replica sets, daemons, and finally adding the shards."""

import time
from collections.abc import Mapping
from typing import Any, Final

from pymongo import MongoClient, WriteConcern
from pymongo.errors import PyMongoError

from shardwright.deploy.cluster_state import ClusterState
from shardwright.deploy.errors import DeployError, reason
from shardwright.deploy.layout import Layout
from shardwright.deploy.mongod import initiate, wait_members_known, wait_primary
from shardwright.deploy.ports import PortReservation
from shardwright.deploy.steps import Steps, counted
from shardwright.deploy.supervisor import Supervisor
from shardwright.deploy.topology import Role, Topology

PROBE_DATABASE: Final = "shardwright_probe"
"""The database used, and dropped again, by the test write."""


def start_cluster(
    layout: Layout,
    state: ClusterState,
    supervisor: Supervisor,
    ports: PortReservation,
    steps: Steps,
    deadline: float,
) -> None:
    """Start all processes, bottom up, and return once a client can write.

    Args:
        ports: holds the ports of the processes until they are started.
        deadline: on the monotonic clock.

    Raises:
        DeployError: something did not start in time. Processes already started are left running.
    """
    topology, log_in = state.topology, layout.log_in(state)
    start_processes(topology, state, supervisor, ports, steps, deadline, log_in)
    with MongoClient[dict[str, Any]](
        topology.uri,
        serverSelectionTimeoutMS=_milliseconds_left(deadline),
        socketTimeoutMS=_milliseconds_left(deadline),
        **log_in,
    ) as client:
        with steps.step("shards"):
            _add_shards(client, state)
        with steps.step("a client writes"):
            _prove_writable(client)
        if state.has_access_control:
            layout.access.create_first_user(client)
    steps.say(f"ready after {steps.total():.1f} s")


def start_processes(
    topology: Topology,
    state: ClusterState,
    supervisor: Supervisor,
    ports: PortReservation,
    steps: Steps,
    deadline: float,
    log_in: Mapping[str, Any],
) -> None:
    """Start processes, bottom up, and return once they are ready; arguments and errors as `start_cluster`.

    A daemon takes a second of processor time to import its modules. So all daemons are started as soon as the mongods
    listen, and import while the sets elect their primaries. With access control the routers start after the config
    daemons: a router that finds none retries its lookup of users only after ten seconds.

    Args:
        topology: the processes to start, perhaps a part of the cluster.
        state: the whole cluster.
    """

    def start_all(*roles: Role) -> None:
        for plan in (plan for role in roles for plan in topology.of_role(role)):
            ports.release(*plan.ports(state.workers))
            supervisor.start(plan)

    def wait_ready(role: Role) -> None:
        for plan in topology.of_role(role):
            supervisor.wait_ready([plan], deadline)
            steps.advance()

    daemon_roles = (Role.CONFIGD, Role.SHARDD, Role.ROUTER)
    with steps.step(counted("mongod", topology.of_role(Role.MONGOD))):
        start_all(Role.MONGOD)
        wait_ready(Role.MONGOD)
    with steps.step("replica sets"):
        start_all(Role.CONFIGD, Role.SHARDD, *(() if state.has_access_control else (Role.ROUTER,)))
        for replica_set, members in topology.replica_sets():
            initiate(replica_set, members, state.address(members[0]), log_in)
        for replica_set, members in topology.replica_sets():
            wait_primary(replica_set, map(state.address, members), deadline, log_in)
            steps.advance()
    for role in daemon_roles:
        daemons = topology.of_role(role)
        if not daemons:
            continue
        with steps.step(counted(role, daemons)):
            wait_ready(role)
            if role is Role.CONFIGD and state.has_access_control:
                start_all(Role.ROUTER)
            for addresses in topology.daemon_sets(role):
                wait_members_known(addresses, deadline, log_in)


def _add_shards(client: MongoClient[dict[str, Any]], state: ClusterState) -> None:
    """Add the shards that were never added. A shard that was added and is no longer listed has been removed."""
    try:
        listed = {shard["_id"] for shard in client.admin.command("listShards")["shards"]}
        for shard in state.topology.shards:
            if shard["_id"] not in listed | state.added:
                client.admin.command("addShard", shard["host"], name=shard["_id"])
    except PyMongoError as error:
        raise DeployError(f"cannot add the shards: {reason(error)}") from error


def _prove_writable(client: MongoClient[dict[str, Any]]) -> None:
    """Write one document as any client would, so that success means a usable cluster."""
    try:
        database = client.get_database(PROBE_DATABASE, write_concern=WriteConcern("majority"))
        database["probe"].insert_one({})
        client.drop_database(PROBE_DATABASE)
    except PyMongoError as error:
        raise DeployError(f"the cluster runs, but a client cannot write: {reason(error)}") from error


def _milliseconds_left(deadline: float) -> int:
    return max(1, int((deadline - time.monotonic()) * 1000))
