"""``shardwright up``: its options, the cluster that it starts, and the order of the start.

The cluster is the one in the directory, or a new one. Mongods start first, then replica sets and daemons. Finally the
shards are added.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pymongo import MongoClient, WriteConcern
from pymongo.errors import PyMongoError

from shardwright.deploy.access import KEY_FILE
from shardwright.deploy.cluster_state import (
    DEFAULT_CACHE_GB,
    DEFAULT_LOG_ROTATE,
    DEFAULT_WORKERS,
    ClusterState,
    DaemonOptions,
    combined,
)
from shardwright.deploy.errors import DeployError, reason
from shardwright.deploy.layout import Layout, remove_sockets
from shardwright.deploy.mongod import client_of, initiate, wait_members_known, wait_primary
from shardwright.deploy.ports import PortReservation
from shardwright.deploy.steps import Steps, counted
from shardwright.deploy.supervisor import Supervisor
from shardwright.deploy.topology import Role, Size, Topology

DEFAULT_PORT: Final = 27017
DEFAULT_START_TIMEOUT: Final = 120.0

SHARDS_MAX: Final = 100
ROUTERS_MAX: Final = 100
MEMBERS_MAX: Final = 7
"""The maximum number of voting members of a MongoDB replica set."""

WORKERS_MAX: Final = 64
"""The maximum number of workers that a cursor id can identify."""

PROBE_DATABASE: Final = "shardwright_probe"
"""The database used, and dropped again, by the test write."""


@dataclass(frozen=True)
class UpOptions:
    """The options given to ``shardwright up``; ``None`` for omitted ones.

    Attributes:
        port: the port of the first router; 0 chooses a free one.
        log_rotate: action on a log file at rotation, ``rename`` or ``reopen``.
        parameters: additional or changed server parameters of the shards.
        daemon_options: additional or changed options of the daemons.
        separate_sockets: whether each daemon of a new cluster gets its own socket directory.
        auth: whether a new cluster gets access control; an existing one keeps its setting.
        tls: whether a new cluster uses TLS; an existing one keeps its setting.
        cluster_auth_mode: how the processes of a new cluster authenticate to each other.
        start_timeout: the maximum duration of the start, in seconds.
    """

    shards: int | None = None
    members: int | None = None
    config_members: int | None = None
    routers: int | None = None
    port: int | None = None
    mongod: str | None = None
    workers: int | None = None
    cache_gb: float | None = None
    log_rotate: str | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    daemon_options: DaemonOptions = field(default_factory=dict)
    separate_sockets: bool = False
    auth: bool = False
    tls: bool = False
    cluster_auth_mode: str | None = None
    start_timeout: float = DEFAULT_START_TIMEOUT

    def size(self) -> Size:
        """Return the size of a new cluster.

        Raises:
            DeployError: a number is too small or too large, or the options contradict each other.
        """
        self._check_maxima()
        if self.cluster_auth_mode not in (None, KEY_FILE) and not (self.auth and self.tls):
            raise DeployError(f"--cluster-auth-mode {self.cluster_auth_mode} needs --auth and --tls")
        return Size.of(self.shards, self.members, self.config_members, self.routers)

    def _check_maxima(self) -> None:
        given = {
            "--shards": (self.shards, SHARDS_MAX),
            "--members": (self.members, MEMBERS_MAX),
            "--config-members": (self.config_members, MEMBERS_MAX),
            "--routers": (self.routers, ROUTERS_MAX),
            "--workers": (self.workers, WORKERS_MAX),
        }
        for option, (number, maximum) in given.items():
            if number is not None and number > maximum:
                raise DeployError(f"{option} must be at most {maximum}, not {number}")


def existing_cluster(
    layout: Layout, state: ClusterState, options: UpOptions, mongod: str, ports: PortReservation
) -> ClusterState:
    """Prepare the cluster in the directory for a start on its previous ports, and reserve them."""
    _check_same(layout, options, state)
    sockets = layout.choose_sockets()
    if sockets != state.sockets:
        remove_sockets(state.sockets)  # from a run with another TMPDIR
    workers = options.workers or state.workers
    for plan in state.topology.processes:
        for port in plan.ports(workers):
            ports.hold(port)
    return ClusterState(
        state.topology,
        mongod,
        options.cache_gb or state.cache_gb,
        workers,
        sockets,
        {**state.parameters, **options.parameters},
        state.separate_sockets,
        options.log_rotate or state.log_rotate,
        combined(state.daemon_options, options.daemon_options),
        state.has_access_control,
        state.added,
        state.has_tls,
        state.cluster_auth_mode,
    )


def new_cluster(layout: Layout, options: UpOptions, mongod: str, ports: PortReservation) -> ClusterState:
    """Lay out a cluster of the requested size, on free ports, and reserve them."""
    size, wanted = options.size(), DEFAULT_PORT if options.port is None else options.port
    # Routers get consecutive ports even if any port will do: drivers' suites expect a second router on the next port.
    first = wanted or ports.hold_free_run(size.routers)

    def router_port(index: int) -> int:
        return ports.hold_free(preferred=[first + index]) if wanted and index else first + index

    if wanted:
        ports.hold(wanted)
    workers = options.workers or DEFAULT_WORKERS
    topology = Topology.plan(
        size,
        router_port=router_port,
        free_ports=ports.hold_free_run,
        workers=workers,
        # A mongod's test commands need no log-in, so with access control it has a port only if TLS restricts it to
        # members.
        mongods_have_ports=options.tls or not options.auth,
    )
    return ClusterState(
        topology,
        mongod,
        options.cache_gb or DEFAULT_CACHE_GB,
        workers,
        layout.choose_sockets(),
        options.parameters,
        options.separate_sockets,
        options.log_rotate or DEFAULT_LOG_ROTATE,
        combined({}, options.daemon_options),
        options.auth,
        has_tls=options.tls,
        cluster_auth_mode=options.cluster_auth_mode or KEY_FILE,
    )


def _check_same(layout: Layout, options: UpOptions, state: ClusterState) -> None:
    """Refuse options that contradict the cluster in the directory."""
    size = state.topology.size
    has = {
        "--shards": (options.shards, size.shards),
        "--members": (options.members, size.members),
        "--config-members": (options.config_members, size.config_members),
        "--routers": (options.routers, size.routers),
        "--port": (options.port or None, state.topology.of_role(Role.ROUTER)[0].port),
    }
    for option, (wanted, found) in has.items():
        if wanted is not None and wanted != found:
            raise DeployError(f"the cluster in {layout.root} was created with {option} {found}; omit {option} {wanted}")
    if options.auth and not state.has_access_control:
        raise DeployError(f"the cluster in {layout.root} was created without --auth; omit it")
    mode = options.cluster_auth_mode
    if mode not in (None, state.cluster_auth_mode):
        raise DeployError(
            f"the cluster in {layout.root} is in mode {state.cluster_auth_mode}; omit --cluster-auth-mode {mode}, and "
            f"change it while it runs: `{layout.command('cluster-auth-mode', mode)}`"
        )
    if options.tls and not state.has_tls:
        raise DeployError(f"the cluster in {layout.root} was created without --tls; omit it")


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
    milliseconds = _milliseconds_left(deadline)
    timeouts = {"serverSelectionTimeoutMS": milliseconds, "socketTimeoutMS": milliseconds}
    with client_of(topology.uri, {**timeouts, **log_in}) as client:
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
