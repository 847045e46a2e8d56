"""The operations on one local cluster, one per command of `shardwright`."""

import json
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bson import json_util

from shardwright.deploy.access import has_key
from shardwright.deploy.balancing import balancer, explanation
from shardwright.deploy.cluster_state import DEFAULT_CACHE_GB, DEFAULT_WORKERS, ClusterState, check_options
from shardwright.deploy.doctor import Credentials, examine_host, gather
from shardwright.deploy.doctor_facts import Facts
from shardwright.deploy.errors import DeployError
from shardwright.deploy.internal_authentication import change_mode, rotate_key
from shardwright.deploy.layout import DamagedStateError, Layout, remove_sockets
from shardwright.deploy.mongod import find_mongod, untried_release
from shardwright.deploy.observing import inconsistencies
from shardwright.deploy.ports import PortReservation
from shardwright.deploy.processes import exit_description, marked_processes, wait_any_ended
from shardwright.deploy.shards import add_shard, remove_shard
from shardwright.deploy.status import migrations_under_way, processes_with_states, reshardings_under_way
from shardwright.deploy.steps import Steps, counted
from shardwright.deploy.supervisor import STOP_ORDER, Supervisor
from shardwright.deploy.topology import ProcessPlan, Role, Size, Topology
from shardwright.deploy.up import UpOptions, existing_cluster, new_cluster, start_cluster

WATCH_INTERVAL: Final = 1.0
"""Seconds between checks for processes that another command has started or stopped."""


class LocalCluster:
    """The cluster in one directory.

    Methods that need an existing cluster raise `DeployError` if the directory has none.
    """

    def __init__(self, directory: Path, steps: Steps) -> None:
        self._layout = Layout(directory.resolve())
        self._steps = steps

    def up(self, options: UpOptions) -> None:
        """Start a new cluster, or the one in the directory, and return when a client can write.

        Raises:
            DeployError: it cannot be started. Nothing is left running.
        """
        options.size()  # before anything is touched
        check_options(options.daemon_options)
        mongod = find_mongod(options.mongod)
        if (warning := untried_release(mongod)) is not None:
            self._steps.say(f"shardwright: {warning}")
        self._layout.load()
        with self._layout.lock(), PortReservation() as ports:
            state = self._plan(options, mongod, ports)
            self._layout.create(state)
            self._layout.save(state)
            supervisor = Supervisor(self._layout, state)
            try:
                deadline = time.monotonic() + options.start_timeout
                start_cluster(self._layout, state, supervisor, ports, self._steps, deadline)
                added = frozenset(shard["_id"] for shard in state.topology.shards)
                self._layout.save(replace(state, added=state.added | added))
            except BaseException:
                self._stop(state, supervisor)
                raise

    def down(self) -> None:
        """Stop all processes in order; does nothing if the cluster is already down."""
        try:
            state = self._layout.require()
        except DamagedStateError as error:
            self._steps.say(f"shardwright: {error}")
            state = _recovered_state(self._layout)
        with self._layout.lock(wait=True):
            self._stop(state, self._supervisor(state))

    def kill(self, name: str, number: signal.Signals) -> None:
        """Send a signal to one process, and wait for its end or pause if the signal causes one."""
        state = self._layout.require()
        self._supervisor(state).signal(state.topology.named(name), number)

    def restart(self, name: str, timeout: float) -> None:
        """Stop one process if it is running, start it again, and wait until it is ready."""
        state = self._layout.require()
        plan = state.topology.named(name)
        with self._layout.lock(), self._steps.step(f"restarting {name}"):
            self._supervisor(state).restart(plan, time.monotonic() + timeout)

    def rotate_key(self, timeout: float) -> None:
        """Replace the key of the running cluster, process by process. The call can be repeated after an interruption.

        Args:
            timeout: seconds until each process must be ready again.
        """
        state = self._layout.require()
        with self._layout.lock():
            rotate_key(self._layout, state, self._supervisor(state), self._steps, timeout)
        self._steps.say("the cluster has a new key")

    def change_cluster_auth_mode(self, mode: str) -> None:
        """Change ``clusterAuthMode`` of the running cluster. The call can be repeated after an interruption."""
        state = self._layout.require()
        with self._layout.lock():
            change_mode(self._layout, state, self._supervisor(state), self._steps, mode)
        self._steps.say(f"the cluster is in mode {mode}")

    def add_shard(self, members: int | None, timeout: float) -> None:
        """Start another shard and add it to the running cluster.

        Args:
            members: of its replica set; None for as many as the other shards have.
        """
        self._layout.require()
        with self._layout.lock():
            state = self._layout.require()
            count = state.topology.size.members if members is None else members
            shard = add_shard(self._layout, state, count, self._steps, time.monotonic() + timeout)
        self._steps.say(f"{shard} is a shard of the cluster")

    def remove_shard(self, shard: str) -> None:
        """Drain a shard, remove it from the running cluster and stop it.

        The call can be repeated after an interruption.

        Raises:
            DeployError: there is no such shard, or something is left on it that does not move by itself.
        """
        self._layout.require()
        with self._layout.lock():
            state = self._layout.require()
            remove_shard(self._layout, state, shard, self._steps)
        self._steps.say(f"{shard} was removed")

    def balancer(self, action: str) -> dict[str, Any]:
        """Start or stop the balancer if ``action`` says so, and return its state (see `deploy.balancing`)."""
        return balancer(*self.connection(), action)

    def check(self, *, indexes: bool) -> list[dict[str, Any]]:
        """Return the inconsistencies of the cluster's metadata (see `deploy.observing`)."""
        return inconsistencies(*self.connection(), indexes=indexes)

    def explain_balancer(self) -> dict[str, Any]:
        """Return the decisions of the next balancer round (see `deploy.balancing`)."""
        return explanation(*self.connection())

    def connection(self) -> tuple[str, Mapping[str, Any]]:
        """Return the connection string of the routers and the options to log in."""
        state = self._layout.require()
        return state.topology.uri, self._layout.log_in(state)

    def describe(self) -> dict[str, Any]:
        """Return the document for ``--json``; a process that is not running has the pid ``None``."""
        state = self._layout.require()
        supervisor = self._supervisor(state)
        topology = state.topology

        def describe_process(plan: ProcessPlan) -> dict[str, Any]:
            identity = supervisor.running(plan)
            return {
                "name": plan.name,
                "role": plan.role.value,
                "address": state.address(plan),
                "pid": None if identity is None else identity.pid,
                "log": str(self._layout.log(plan.name)),
            }

        access = self._layout.access.describe(has_key=has_key(state.cluster_auth_mode))
        return {
            "uri": topology.uri,
            "dir": str(self._layout.root),
            "processes": [describe_process(plan) for plan in topology.processes],
            "shards": topology.shards,
            "metrics": {plan.name: plan.metrics_address for plan in topology.processes if plan.metrics_address},
            **({"auth": access} if state.has_access_control else {}),
            **({"tls": self._layout.tls.describe()} if state.has_tls else {}),
        }

    def process_list(self) -> list[dict[str, Any]]:
        """Return the processes with their states (see `deploy.status`)."""
        state = self._layout.require()
        supervisor = self._supervisor(state)
        plans = state.topology.processes
        running = {plan: supervisor.running(plan) for plan in plans}
        pids = {plan: None if identity is None else identity.pid for plan, identity in running.items()}
        return processes_with_states(
            pids, {plan.name: state.address(plan) for plan in plans}, self._layout.log_in(state)
        )

    def facts(self) -> Facts:
        """Collect the facts about the cluster and this machine for `shardwright doctor`."""
        state = self._layout.require()
        supervisor = self._supervisor(state)
        log_in = self._layout.log_in(state)
        metrics = {plan.address: plan.metrics_address for plan in state.topology.processes if plan.metrics_address}
        routers = [plan.address for plan in state.topology.of_role(Role.ROUTER)]
        known = {
            "config": state.topology.config_string,
            **{each["_id"]: each["host"] for each in state.topology.shards},
        }
        pids = {}
        for plan in state.topology.processes:
            identity = supervisor.running(plan)
            if identity is not None:
                data = (str(self._layout.data(plan.name)),) if plan.role is Role.MONGOD else ()
                pids[plan.name] = identity.pid, data
        facts = gather(routers, Credentials(log_in, log_in), known=known, metrics=metrics)
        return replace(facts, host=examine_host(pids))

    @property
    def directory(self) -> Path:
        """The directory of the cluster."""
        return self._layout.root

    def log(self, name: str) -> Path:
        """Return the path of a process's log."""
        return self._layout.log(self._layout.require().topology.named(name).name)

    def destroy(self) -> None:
        """Stop all processes, and delete the launcher's files and the directory if nothing else is in it."""
        self.down()
        self._layout.remove()
        self._steps.say(f"{self._layout.root} was deleted")

    def migrations(self) -> list[dict[str, Any]]:
        """Return the active migrations, from the running shard daemons (see `deploy.status`)."""
        return migrations_under_way(self._running_shard_daemons(), self._layout.log_in(self._layout.require()))

    def reshardings(self) -> list[dict[str, Any]]:
        """Return the recipients of the present resharding operation (see `deploy.status`)."""
        return reshardings_under_way(self._running_shard_daemons(), self._layout.log_in(self._layout.require()))

    def _running_shard_daemons(self) -> list[ProcessPlan]:
        state = self._layout.require()
        supervisor = Supervisor(self._layout, state)
        supervisor.find_unrecorded()
        return [plan for plan in state.topology.of_role(Role.SHARDD) if supervisor.running(plan)]

    def watch(self) -> None:
        """Report every process that ends unexpectedly; return when another command has stopped all of them."""
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
                    again = self._layout.command("restart", name)
                    self._steps.say(f"{name} {exit_description(identity)}; `{again}` starts it again")
            wait_any_ended(alive, WATCH_INTERVAL)

    def _supervisor(self, state: ClusterState) -> Supervisor:
        """Return the supervisor of the processes, after reporting problems with the directory."""
        supervisor = Supervisor(self._layout, state)
        for complaint in supervisor.find_unrecorded():
            self._steps.say(f"shardwright: {complaint}")
        for original in supervisor.originals():
            self._steps.say(
                f"shardwright: {self._layout.root} is a copy of {original}; its processes are not controlled from here"
            )
        return supervisor

    def _plan(self, options: UpOptions, mongod: str, ports: PortReservation) -> ClusterState:
        """Plan the cluster to start."""
        state = self._layout.load()
        if state is None:
            planned = new_cluster(self._layout, options, mongod, ports)
            self._steps.say(f"starting a cluster in {self._layout.root}")
            return planned
        self._check_stopped(state)
        planned = existing_cluster(self._layout, state, options, mongod, ports)
        self._steps.say(f"restarting the cluster in {self._layout.root}")
        return planned

    def _check_stopped(self, state: ClusterState) -> None:
        """Refuse to start a cluster that is running, completely or partly."""
        supervisor = self._supervisor(state)
        running = [plan.name for plan in state.topology.processes if supervisor.running(plan)]
        see, stop = self._layout.command("status"), self._layout.command("down")
        if len(running) == len(state.topology.processes):
            raise DeployError(f"the cluster in {self._layout.root} is running; see `{see}`, or stop it with `{stop}`")
        if running:
            raise DeployError(
                f"part of the cluster in {self._layout.root} is running ({', '.join(running)}); "
                f"see `{see}`, or stop it with `{stop}` and start it again"
            )

    def _stop(self, state: ClusterState, supervisor: Supervisor) -> None:
        for role in STOP_ORDER:
            plans = [plan for plan in state.topology.of_role(role) if supervisor.identity(plan)]
            if not plans:
                continue
            with self._steps.step(f"stopping {counted(role, plans)}"):
                killed = supervisor.stop(plans)
            for name in killed:
                self._steps.say(f"  {name} did not end and was killed")
        supervisor.forget(state.topology.processes)
        remove_sockets(state.sockets)


def json_line(document: dict[str, Any]) -> str:
    """Encode ``document`` on one line; shard keys are written as MongoDB extended JSON."""
    return json.dumps(document, separators=(",", ":"), default=json_util.default)


def _recovered_state(layout: Layout) -> ClusterState:
    """Return a state with only the names and roles of the running processes."""
    plans = tuple(ProcessPlan(name, _role(name), port=0) for name in sorted(marked_processes(layout.identity())))
    return ClusterState(Topology(Size(), plans), "", DEFAULT_CACHE_GB, DEFAULT_WORKERS, layout.choose_sockets())


def _role(name: str) -> Role:
    """Return the role in a name: at the end of ``shard0.1.mongod``, at the beginning of ``router.0``."""
    first, last = name.partition(".")[0], name.rpartition(".")[2]
    return Role.ROUTER if first == Role.ROUTER else Role(last)
