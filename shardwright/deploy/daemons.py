"""Command lines of our daemons."""

import sys
from collections.abc import Mapping

from shardwright.deploy.cluster_state import ClusterState
from shardwright.deploy.daemon_options import option_words
from shardwright.deploy.layout import Layout
from shardwright.deploy.modes import daemon_words
from shardwright.deploy.parameters import parameters_of_daemon, parameters_of_router
from shardwright.deploy.topology import ProcessPlan, Role


def daemon_arguments(layout: Layout, state: ClusterState, plan: ProcessPlan) -> list[str]:
    """Return the command line of a configd, shardd or router, with the interpreter and packages of this launcher."""
    assert plan.metrics_port is not None
    common = [
        # -P: Python must not import a folder in the current directory that has the name of one of our packages.
        *(sys.executable, "-P", "-m", f"shardwright.{plan.role}.main"),
        *("--port", str(plan.port)),
        *("--metrics-port", str(plan.metrics_port)),
        *("--log-file", str(layout.log(plan.name))),
        *("--log-rotate", state.log_rotate),
        *("--unix-socket-directory", str(state.sockets_of(plan.name))),
        *(daemon_words(state.cluster_auth_mode, layout.access.key_file) if state.has_access_control else ()),
        *(layout.tls.daemon_words() if state.has_tls else ()),
        *option_words(state.daemon_options.get(plan.role, {})),
    ]
    if plan.role is Role.ROUTER:
        parameters = parameters_of_router(state.parameters)
        of_router = ("--configdb", state.topology.config_string, "--workers", str(state.workers))
        return [*common, *of_router, *_parameter_words(parameters)]
    mongod = state.topology.mongod_behind(plan)
    parameters = parameters_of_daemon(state.parameters) if plan.role is Role.SHARDD else {}
    return [
        *common,
        *("--mongod-socket", str(state.mongod_socket(mongod))),
        *("--mongod-address", mongod.address),
        *(("--mongod-tls",) if state.has_tls else ()),
        *_parameter_words(parameters),
    ]


def _parameter_words(parameters: Mapping[str, str]) -> list[str]:
    return [word for name, value in parameters.items() for word in ("--set-parameter", f"{name}={value}")]
