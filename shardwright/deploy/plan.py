"""The cluster that ``up`` starts: the one in the directory, or a new one."""

from shardwright.deploy.cluster_state import DEFAULT_CACHE_GB, DEFAULT_LOG_ROTATE, DEFAULT_WORKERS, ClusterState
from shardwright.deploy.daemon_options import combined
from shardwright.deploy.errors import DeployError
from shardwright.deploy.layout import Layout, remove_sockets
from shardwright.deploy.modes import KEY_FILE
from shardwright.deploy.ports import PortReservation
from shardwright.deploy.topology import Role, Topology
from shardwright.deploy.up_options import DEFAULT_PORT, UpOptions


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
