"""Replacing the key of a running cluster, one process at a time: from the old key to both, then to the new one.

A process reads its key file when it starts. With two keys it accepts both and uses the first, or where that is refused
the second, so that it gets on with neighbours of the step before and of the step after. What has been done is recorded
in DIR/auth/rotation.json, so that the rotation can be interrupted at any point and the command repeated.
"""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Self

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from shardwright.deploy.access import Access, new_key
from shardwright.deploy.cluster_state import ClusterState
from shardwright.deploy.durable_files import write_json
from shardwright.deploy.errors import DeployError
from shardwright.deploy.layout import Layout
from shardwright.deploy.modes import has_key
from shardwright.deploy.mongod import POLL_INTERVAL, connect, wait_members_known, wait_primary
from shardwright.deploy.steps import Steps
from shardwright.deploy.supervisor import Supervisor
from shardwright.deploy.topology import ProcessPlan, Role


class Stage(StrEnum):
    """What the key file has while processes are restarted."""

    BOTH = "both keys"
    NEW = "the new key"


@dataclass(slots=True)
class Rotation:
    """How far a rotation has come.

    Attributes:
        stage: what the key file has, or is about to get.
        restarted: the processes that have read it.
    """

    stage: Stage = Stage.BOTH
    restarted: list[str] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path) -> Self | None:
        """The one that was interrupted, if there is one.

        Raises:
            DeployError: the file is damaged.
        """
        try:
            document = json.loads(path.read_text())
            return cls(Stage(document["stage"]), [str(name) for name in document["restarted"]])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DeployError(f"{path} is damaged ({error}); remove it to begin with another key") from error

    def save(self, path: Path) -> None:
        """Record it.

        Raises:
            DeployError: it cannot be written.
        """
        document: dict[str, Any] = {"stage": self.stage.value, "restarted": self.restarted}
        write_json(path, document)


_STAGES: Final = tuple(Stage)


def rotate_key(layout: Layout, state: ClusterState, supervisor: Supervisor, steps: Steps, seconds: float) -> None:
    """Give the cluster another key, or finish what was interrupted.

    Args:
        layout: its directory.
        state: the cluster, which is running.
        supervisor: restarts its processes.
        steps: prints progress.
        seconds: how long each process may take to be ready again.

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
    """Bring the key file to a stage. The new key comes first, and is made when there is only one."""
    keys = access.keys()
    if stage is Stage.NEW:
        access.write_keys(keys[:1])
    elif len(keys) == 1:
        access.write_keys([new_key(), *keys])


def _in_order(layout: Layout, state: ClusterState) -> Iterator[ProcessPlan]:
    """The mongods, each set's primary last, so that there is one election; then the daemons."""
    for _, members in state.topology.replica_sets():
        yield from sorted(members, key=lambda member: _is_primary(layout.connection(state), state.address(member)))
    for role in (Role.CONFIGD, Role.SHARDD, Role.ROUTER):
        yield from state.topology.of_role(role)


def _restart(layout: Layout, state: ClusterState, supervisor: Supervisor, plan: ProcessPlan, deadline: float) -> None:
    """Restart a process, and wait until its replica set could do without the next one.

    Raises:
        DeployError: that takes too long.
    """
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
    """Wait until a mongod is primary or secondary.

    Raises:
        DeployError: it is neither in time.
    """
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
    """What a mongod says of itself; nothing if it does not answer."""
    try:
        return client.admin.command("hello")
    except PyMongoError:
        return {}
