"""One local cluster from beginning to end: what `up`, `down`, `status`, `kill` and `restart` do, step by step."""

import json
import signal
import time
from pathlib import Path
from typing import Any, Final

from bson import json_util

from shardwright.deploy.daemon_options import check_options
from shardwright.deploy.errors import DeployError
from shardwright.deploy.layout import ClusterState, DamagedStateError, Layout, remove_sockets
from shardwright.deploy.migrations import migrations_under_way
from shardwright.deploy.mongod import find_mongod
from shardwright.deploy.plan import existing_cluster, new_cluster
from shardwright.deploy.ports import PortReservation
from shardwright.deploy.processes import exit_description, wait_any_ended
from shardwright.deploy.recovery import recovered_state
from shardwright.deploy.start import start_cluster
from shardwright.deploy.steps import Steps, counted
from shardwright.deploy.supervisor import STOP_ORDER, Supervisor
from shardwright.deploy.topology import ProcessPlan, Role
from shardwright.deploy.up_options import UpOptions

WATCH_INTERVAL: Final = 1.0
"""Seconds between looks for processes that another command has started or ended."""


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
        check_options(options.daemon_options)
        mongod = find_mongod(options.mongod)
        self._layout.load()
        with self._layout.lock(), PortReservation() as ports:
            state = self._plan(options, mongod, ports)
            self._layout.create(state)
            self._layout.save(state)
            supervisor = Supervisor(self._layout, state)
            try:
                start_cluster(state, supervisor, ports, self._steps, time.monotonic() + options.start_timeout)
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
        """What controls the processes; says first what is odd about the directory."""
        supervisor = Supervisor(self._layout, state)
        for complaint in supervisor.find_unrecorded():
            self._steps.say(f"shardwright: {complaint}")
        for original in supervisor.originals():
            self._steps.say(
                f"shardwright: {self._layout.root} is a copy of {original}; its processes are not controlled from here"
            )
        return supervisor

    def _plan(self, options: UpOptions, mongod: str, ports: PortReservation) -> ClusterState:
        """The cluster that is to be started."""
        state = self._layout.load()
        if state is None:
            planned = new_cluster(self._layout, options, mongod, ports)
            self._steps.say(f"starting a cluster in {self._layout.root}")
            return planned
        self._check_stopped(state)
        planned = existing_cluster(self._layout, state, options, mongod, ports)
        self._steps.say(f"bringing back the cluster in {self._layout.root}")
        return planned

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
    """``document`` on one line; shard keys in it as MongoDB's extended JSON."""
    return json.dumps(document, separators=(",", ":"), default=json_util.default)
