"""Changing how the processes of a running cluster authenticate to each other (MongoDB's ``clusterAuthMode``).

The cluster goes through the modes one at a time. All processes reach a mode before the first one enters the next, so
that every process accepts the credentials that the others send.
"""

from dataclasses import replace
from typing import Any, Final

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from shardwright.deploy.cluster_state import ClusterState
from shardwright.deploy.errors import DeployError, reason
from shardwright.deploy.layout import Layout
from shardwright.deploy.modes import MODES
from shardwright.deploy.mongod import connect
from shardwright.deploy.steps import Steps
from shardwright.deploy.supervisor import Supervisor
from shardwright.deploy.topology import Role

_PARAMETER: Final = "clusterAuthMode"


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
                _change(client, plan.name, mode)
        state = replace(state, cluster_auth_mode=mode)
        layout.save(state)


def _change(client: MongoClient[dict[str, Any]], name: str, mode: str) -> None:
    try:
        present = client.admin.command({"getParameter": 1, _PARAMETER: 1})[_PARAMETER]
        if MODES.index(present) < MODES.index(mode):
            client.admin.command({"setParameter": 1, _PARAMETER: mode})
    except PyMongoError as error:
        raise DeployError(f"{name} cannot be brought to mode {mode}: {reason(error)}") from error
