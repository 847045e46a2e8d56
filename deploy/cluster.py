"""One local cluster from beginning to end: what `up`, `down`, `status`, `kill` and `restart` do, step by step."""

import json
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bson import json_util
from pymongo import MongoClient, WriteConcern
from pymongo.errors import PyMongoError

from deploy.errors import DeployError, reason
from deploy.layout import (
    DEFAULT_CACHE_GB,
    DEFAULT_LOG_ROTATE,
    DEFAULT_WORKERS,
    ClusterState,
    DamagedStateError,
    Layout,
    remove_sockets,
)
from deploy.migrations import migrations_under_way
from deploy.mongod import find_mongod, initiate, wait_members_known, wait_primary
from deploy.ports import PortReservation
from deploy.processes import exit_description, wait_any_ended
from deploy.recovery import recovered_state
from deploy.steps import Steps
from deploy.supervisor import STOP_ORDER, Supervisor
from deploy.topology import ProcessPlan, Role, Size, Topology

DEFAULT_PORT = 27017
DEFAULT_START_TIMEOUT = 120.0

# The database that the proof of writing uses and drops again.
PROBE_DATABASE = "shardwright_probe"

# Seconds between looks for processes that another command has started or ended.
WATCH_INTERVAL = 1.0


@dataclass(frozen=True)
class UpOptions:
    """What ``shardwright up`` was asked for; ``None`` where nothing was said.

    Attributes:
        port: of the first router; 0 chooses a free one.
        log_rotate: what a rotation does with a log file, ``rename`` or ``reopen``.
        parameters: what the shards are to be started with, on top of what they had before.
        separate_sockets: give each daemon of a new cluster a socket directory of its own, where others find nothing.
        start_timeout: seconds that the whole start may take.
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
    separate_sockets: bool = False
    start_timeout: float = DEFAULT_START_TIMEOUT

    def size(self) -> Size:
        """The size of a new cluster.

        Raises:
            DeployError: a number is too small.
        """
        return Size.of(self.shards, self.members, self.config_members, self.routers)


class LocalCluster:
    """The cluster in one directory."""

    def __init__(self, directory: Path, steps: Steps) -> None:
        self._layout = Layout(directory.resolve())
        self._steps = steps

    def up(self, options: UpOptions) -> None:
        """Start the cluster, a new one or the one that the directory holds; returns when a client can write.

        Raises:
            DeployError: it cannot be started. Nothing is left running.
        """
        options.size()  # before anything is touched
        mongod = find_mongod(options.mongod)
        self._layout.load()
        with self._layout.lock(), PortReservation() as ports:
            state = self._existing(options, mongod, ports) or self._plan_new(options, mongod, ports)
            self._layout.create(state)
            self._layout.save(state)
            supervisor = Supervisor(self._layout, state)
            try:
                self._start(state, supervisor, ports, time.monotonic() + options.start_timeout)
            except BaseException:
                self._stop(state, supervisor)
                raise

    def down(self) -> None:
        """End all processes in order. A cluster that is down already is fine.

        Raises:
            DeployError: the directory holds no cluster.
        """
        try:
            state = self._layout.require()
        except DamagedStateError as error:
            self._steps.say(f"shardwright: {error}")
            state = recovered_state(self._layout)
        with self._layout.lock(wait=True):
            self._stop(state, self._supervisor(state))

    def kill(self, name: str, number: signal.Signals) -> None:
        """Send a signal to one process, and wait for its end if the signal is one that ends it.

        Raises:
            DeployError: no such process, or it is not running.
        """
        state = self._layout.require()
        self._supervisor(state).signal(state.topology.named(name), number)

    def restart(self, name: str, timeout: float) -> None:
        """End one process if it runs, start it again, and wait until it serves.

        Raises:
            DeployError: no such process, or it does not come up.
        """
        state = self._layout.require()
        plan = state.topology.named(name)
        with self._layout.lock(), self._steps.step(f"restarting {name}"):
            self._supervisor(state).restart(plan, time.monotonic() + timeout)

    def describe(self) -> dict[str, Any]:
        """The document that ``--json`` prints; a process that does not run has the pid ``None``.

        Raises:
            DeployError: the directory holds no cluster.
        """
        state = self._layout.require()
        supervisor = self._supervisor(state)
        topology = state.topology

        def describe_process(plan: ProcessPlan) -> dict[str, Any]:
            identity = supervisor.running(plan)
            return {
                "name": plan.name,
                "role": plan.role.value,
                "address": plan.address,
                "pid": None if identity is None else identity.pid,
                "log": str(self._layout.log(plan.name)),
            }

        return {
            "uri": topology.uri,
            "dir": str(self._layout.root),
            "processes": [describe_process(plan) for plan in topology.processes],
            "shards": topology.shards,
            "metrics": {plan.name: plan.metrics_address for plan in topology.processes if plan.metrics_address},
        }

    def migrations(self) -> list[dict[str, Any]]:
        """The migrations under way, from the shard daemons that run (see `deploy.migrations`).

        Raises:
            DeployError: the directory holds no cluster.
        """
        state = self._layout.require()
        supervisor = Supervisor(self._layout, state)
        supervisor.find_unrecorded()
        return migrations_under_way(plan for plan in state.topology.of_role(Role.SHARDD) if supervisor.running(plan))

    def watch(self) -> None:
        """Report every process that ends unasked; returns when all have been stopped by another command."""
        state = self._layout.require()
        supervisor = Supervisor(self._layout, state)
        reported = set()
        while True:
            identities = {plan.name: supervisor.identity(plan) for plan in state.topology.processes}
            if not any(identities.values()):
                return
            alive = []
            for name, identity in identities.items():
                if identity is None or identity in reported:
                    continue
                if identity.is_running():
                    alive.append(identity)
                else:
                    reported.add(identity)
                    self._steps.say(
                        f"{name} {exit_description(identity)}; `shardwright restart {name}` starts it again"
                    )
            wait_any_ended(alive, WATCH_INTERVAL)

    def _supervisor(self, state: ClusterState) -> Supervisor:
        """What knows the processes, after it has told what is odd about the directory."""
        supervisor = Supervisor(self._layout, state)
        for complaint in supervisor.find_unrecorded():
            self._steps.say(f"shardwright: {complaint}")
        for original in supervisor.originals():
            self._steps.say(
                f"shardwright: {self._layout.root} is a copy of {original}; its processes are not controlled from here"
            )
        return supervisor

    def _existing(self, options: UpOptions, mongod: str, ports: PortReservation) -> ClusterState | None:
        """The cluster that the directory holds, ready to be started on the ports it had."""
        state = self._layout.load()
        if state is None:
            return None
        self._check_stopped(state)
        self._check_same(options, state)
        sockets = self._layout.choose_sockets()
        if sockets != state.sockets:
            remove_sockets(state.sockets)  # of a session with another TMPDIR
        workers = options.workers or state.workers
        for plan in state.topology.processes:
            for port in plan.ports(workers):
                ports.hold(port)
        self._steps.say(f"bringing back the cluster in {self._layout.root}")
        return ClusterState(
            state.topology,
            mongod,
            options.cache_gb or state.cache_gb,
            workers,
            sockets,
            {**state.parameters, **options.parameters},
            state.separate_sockets,
            options.log_rotate or state.log_rotate,
        )

    def _check_stopped(self, state: ClusterState) -> None:
        """Refuse to start what runs, as a whole or in part."""
        supervisor = self._supervisor(state)
        running = [plan.name for plan in state.topology.processes if supervisor.running(plan)]
        if len(running) == len(state.topology.processes):
            raise DeployError(
                f"the cluster in {self._layout.root} is running; "
                "see `shardwright status`, or end it with `shardwright down`"
            )
        if running:
            raise DeployError(
                f"a part of the cluster in {self._layout.root} is running ({', '.join(running)}); "
                "see `shardwright status`, or end it with `shardwright down` and start it again"
            )

    def _check_same(self, options: UpOptions, state: ClusterState) -> None:
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
                raise DeployError(
                    f"the cluster in {self._layout.root} was made with {option} {found}; leave out {option} {wanted}"
                )

    def _plan_new(self, options: UpOptions, mongod: str, ports: PortReservation) -> ClusterState:
        first = DEFAULT_PORT if options.port is None else options.port

        def router_port(index: int) -> int:
            if first == 0:
                return ports.hold_free()
            if index == 0:
                return first
            return ports.hold_free(preferred=[first + index])

        if first:
            ports.hold(first)
        workers = options.workers or DEFAULT_WORKERS
        topology = Topology.plan(
            options.size(), router_port=router_port, free_ports=ports.hold_free_run, workers=workers
        )
        self._steps.say(f"starting a cluster in {self._layout.root}")
        return ClusterState(
            topology,
            mongod,
            options.cache_gb or DEFAULT_CACHE_GB,
            workers,
            self._layout.choose_sockets(),
            options.parameters,
            options.separate_sockets,
            options.log_rotate or DEFAULT_LOG_ROTATE,
        )

    def _start(self, state: ClusterState, supervisor: Supervisor, ports: PortReservation, deadline: float) -> None:
        topology = state.topology

        def start_all(*roles: Role) -> None:
            plans = topology.of_role(*roles)
            for plan in plans:
                for port in plan.ports(state.workers):
                    ports.release(port)
                supervisor.start(plan)
            supervisor.wait_ready(plans, deadline)

        with self._steps.step(_counted("mongod", topology.of_role(Role.MONGOD))):
            start_all(Role.MONGOD)
        with self._steps.step("replica sets"):
            for replica_set, members in topology.replica_sets():
                initiate(replica_set, members)
            for replica_set, members in topology.replica_sets():
                wait_primary(replica_set, members, deadline)
        for role in (Role.CONFIGD, Role.SHARDD, Role.ROUTER):
            with self._steps.step(_counted(role, topology.of_role(role))):
                start_all(role)
                for addresses in topology.daemon_sets(role):
                    wait_members_known(addresses, deadline)
        with MongoClient[dict[str, Any]](
            topology.uri,
            serverSelectionTimeoutMS=_milliseconds_left(deadline),
            socketTimeoutMS=_milliseconds_left(deadline),
        ) as client:
            with self._steps.step("shards"):
                self._add_shards(client, topology)
            with self._steps.step("a client writes"):
                self._prove_writable(client)
        self._steps.say(f"ready after {self._steps.total():.1f} s")

    def _add_shards(self, client: MongoClient[dict[str, Any]], topology: Topology) -> None:
        try:
            listed = {shard["_id"] for shard in client.admin.command("listShards")["shards"]}
            for shard in topology.shards:
                if shard["_id"] not in listed:
                    client.admin.command("addShard", shard["host"], name=shard["_id"])
        except PyMongoError as error:
            raise DeployError(f"cannot add the shards: {reason(error)}") from error

    def _prove_writable(self, client: MongoClient[dict[str, Any]]) -> None:
        """Write one document as any client would, so that success means a usable cluster."""
        try:
            database = client.get_database(PROBE_DATABASE, write_concern=WriteConcern("majority"))
            database["probe"].insert_one({})
            client.drop_database(PROBE_DATABASE)
        except PyMongoError as error:
            raise DeployError(f"the cluster runs, but a client cannot write: {reason(error)}") from error

    def _stop(self, state: ClusterState, supervisor: Supervisor) -> None:
        for role in STOP_ORDER:
            plans = [plan for plan in state.topology.of_role(role) if supervisor.identity(plan)]
            if not plans:
                continue
            with self._steps.step(f"stopping {_counted(role, plans)}"):
                killed = supervisor.stop(plans)
            for name in killed:
                self._steps.say(f"  {name} did not end and was killed")
        supervisor.forget(state.topology.processes)
        remove_sockets(state.sockets)


def json_line(document: dict[str, Any]) -> str:
    """``document`` on one line; shard keys in it as MongoDB's extended JSON."""
    return json.dumps(document, separators=(",", ":"), default=json_util.default)


def _counted(noun: str, plans: list[ProcessPlan]) -> str:
    return f"{len(plans)} {noun}{'s' if len(plans) != 1 else ''}"


def _milliseconds_left(deadline: float) -> int:
    return max(1, int((deadline - time.monotonic()) * 1000))
