"""Changes of the internal authentication of a running cluster: another key, or another ``clusterAuthMode``.

The key is replaced one process at a time: from the old key to both, then to the new one. A process reads its key file
when it starts. With two keys it accepts both. It sends the first key, and the second one to a process that refuses the
first. So it can connect to processes that are one step behind or ahead. Progress is recorded in DIR/auth/rotation.json,
so that the command can be repeated after an interruption at any point.

The cluster goes through the modes one at a time. All processes reach a mode before the first one enters the next, so
that every process accepts the credentials that the others send.
"""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Self

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from shardwright.deploy.access import MODES, Access, has_key, new_key
from shardwright.deploy.cluster_state import ClusterState
from shardwright.deploy.durable_files import write_json
from shardwright.deploy.errors import DeployError, reason
from shardwright.deploy.layout import Layout
from shardwright.deploy.mongod import POLL_INTERVAL, connect, wait_members_known, wait_primary
from shardwright.deploy.steps import Steps
from shardwright.deploy.supervisor import Supervisor
from shardwright.deploy.topology import ProcessPlan, Role

_MODE_PARAMETER: Final = "clusterAuthMode"


class Stage(StrEnum):
    """Contents of the key file while processes are restarted."""

    BOTH = "both keys"
    NEW = "the new key"


@dataclass(slots=True)
class Rotation:
    """Progress of a rotation.

    Attributes:
        stage: the contents of the key file, now or after the next write.
    """

    stage: Stage = Stage.BOTH
    restarted: list[str] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path) -> Self | None:
        """Read the progress of an interrupted rotation; None if there is none."""
        try:
            document = json.loads(path.read_text())
            return cls(Stage(document["stage"]), [str(name) for name in document["restarted"]])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DeployError(f"{path} is damaged ({error}); remove it to begin with another key") from error

    def save(self, path: Path) -> None:
        """Record the progress."""
        document: dict[str, Any] = {"stage": self.stage.value, "restarted": self.restarted}
        write_json(path, document)


_STAGES: Final = tuple(Stage)


def rotate_key(layout: Layout, state: ClusterState, supervisor: Supervisor, steps: Steps, seconds: float) -> None:
    """Give the cluster another key, or finish an interrupted rotation.

    Args:
        seconds: time until each process must be ready again.

    Raises:
        DeployError: the cluster has no access control or is not running, or a process does not become ready. The
            command can be repeated.
    """
    if not state.has_access_control:
        raise DeployError("the cluster has no key: it was started without --auth")
    if not has_key(state.cluster_auth_mode):
        raise DeployError("the cluster has no key: its processes recognise each other by certificates")
    path = layout.access.rotation_file
    rotation = Rotation.load(path)
    if rotation is None:
        _check_running(state, supervisor)
        rotation = Rotation()
    for stage in _STAGES[_STAGES.index(rotation.stage) :]:
        if stage != rotation.stage:
            rotation = Rotation(stage)
        rotation.save(path)
        _write_keys(layout.access, stage)
        for plan in _in_order(layout, state):
            if plan.name not in rotation.restarted:
                with steps.step(f"restarting {plan.name} with {stage}"):
                    _restart(layout, state, supervisor, plan, time.monotonic() + seconds)
                rotation.restarted.append(plan.name)
                rotation.save(path)
    path.unlink()


def _check_running(state: ClusterState, supervisor: Supervisor) -> None:
    for plan in state.topology.processes:
        if supervisor.running(plan) is None:
            raise DeployError(f"{plan.name} is not running; the key is rotated in a cluster that runs as a whole")


def _write_keys(access: Access, stage: Stage) -> None:
    """Bring the key file to a stage. The new key comes first; it is generated if the file has a single key."""
    keys = access.keys()
    if stage is Stage.NEW:
        access.write_keys(keys[:1])
    elif len(keys) == 1:
        access.write_keys([new_key(), *keys])


def _in_order(layout: Layout, state: ClusterState) -> Iterator[ProcessPlan]:
    """Yield the mongods, each set's primary last so that there is only one election, then the daemons."""
    for _, members in state.topology.replica_sets():
        yield from sorted(members, key=lambda member: _is_primary(layout.connection(state), state.address(member)))
    for role in (Role.CONFIGD, Role.SHARDD, Role.ROUTER):
        yield from state.topology.of_role(role)


def _restart(layout: Layout, state: ClusterState, supervisor: Supervisor, plan: ProcessPlan, deadline: float) -> None:
    """Restart a process, and wait until its replica set can lose another member."""
    supervisor.restart(plan, deadline)
    topology, connection = state.topology, layout.connection(state)
    if plan.role is Role.MONGOD:
        addresses = list(map(state.address, dict(topology.replica_sets())[str(plan.replica_set)]))
        wait_primary(str(plan.replica_set), addresses, deadline, connection)
        for address in addresses:
            _wait_member(connection, address, deadline)
        sidecars = topology.of_role(Role.CONFIGD, Role.SHARDD)
        supervisor.wait_ready([each for each in sidecars if topology.mongod_behind(each) == plan], deadline)
    elif plan.role is not Role.ROUTER:
        addresses = next(each for each in topology.daemon_sets(plan.role) if plan.address in each)
        wait_members_known(addresses, deadline, connection)


def _wait_member(connection: Mapping[str, Any], address: str, deadline: float) -> None:
    """Wait until a mongod is primary or secondary."""
    with connect(address, log_in=connection) as client:
        while not {"isWritablePrimary", "secondary"} & {
            name for name, value in _hello(client).items() if value is True
        }:
            if time.monotonic() > deadline:
                raise DeployError(f"the mongod at {address} did not join its replica set in time")
            time.sleep(POLL_INTERVAL)


def _is_primary(connection: Mapping[str, Any], address: str) -> bool:
    with connect(address, log_in=connection) as client:
        return bool(_hello(client).get("isWritablePrimary"))


def _hello(client: MongoClient[dict[str, Any]]) -> dict[str, Any]:
    """Return a mongod's hello; empty if it does not answer."""
    try:
        return client.admin.command("hello")
    except PyMongoError:
        return {}


def change_mode(layout: Layout, state: ClusterState, supervisor: Supervisor, steps: Steps, wanted: str) -> None:
    """Bring all processes to a mode, through the modes before it, and save it for later starts.

    Raises:
        DeployError: the cluster has no access control or no TLS, is already further or is not running, or a process
            refuses. The command can be repeated.
    """
    if not (state.has_access_control and state.has_tls):
        raise DeployError("only a cluster with --auth and --tls can change how its processes recognise each other")
    present = MODES.index(state.cluster_auth_mode)
    if MODES.index(wanted) < present:
        raise DeployError(f"the cluster is in mode {state.cluster_auth_mode}, from which there is no way back")
    for plan in state.topology.processes:
        if supervisor.running(plan) is None:
            raise DeployError(f"{plan.name} is not running; the mode changes in a cluster that runs as a whole")
    for mode in MODES[present + 1 : MODES.index(wanted) + 1]:
        # Each daemon also changes the mode of its mongod.
        for plan in state.topology.of_role(Role.CONFIGD, Role.SHARDD, Role.ROUTER):
            with steps.step(f"{plan.name}: {mode}"), connect(plan.address, log_in=layout.log_in(state)) as client:
                _change_mode(client, plan.name, mode)
        state = replace(state, cluster_auth_mode=mode)
        layout.save(state)


def _change_mode(client: MongoClient[dict[str, Any]], name: str, mode: str) -> None:
    try:
        present = client.admin.command({"getParameter": 1, _MODE_PARAMETER: 1})[_MODE_PARAMETER]
        if MODES.index(present) < MODES.index(mode):
            client.admin.command({"setParameter": 1, _MODE_PARAMETER: mode})
    except PyMongoError as error:
        raise DeployError(f"{name} cannot be brought to mode {mode}: {reason(error)}") from error
