from itertools import count
from pathlib import Path

import pytest

from shardwright.deploy.cluster_state import ClusterState
from shardwright.deploy.daemons import daemon_arguments
from shardwright.deploy.layout import Layout
from shardwright.deploy.parameters import (
    parameters_of_config_mongod,
    parameters_of_daemon,
    parameters_of_mongod,
    parameters_of_router,
    parse_parameter,
)
from shardwright.deploy.topology import Role, Size, Topology


@pytest.mark.parametrize("text", ["", "name", "=value", "name=", "two words=1"])
def test_malformed_parameters_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="NAME=VALUE"):
        parse_parameter(text)


def test_a_value_may_contain_anything() -> None:
    assert parse_parameter("logComponentVerbosity={a: 'b=c'}") == ("logComponentVerbosity", "{a: 'b=c'}")


def test_every_parameter_goes_to_the_process_that_has_it() -> None:
    parameters = {
        "orphanCleanupDelaySecs": "1",
        "verifyMigrations": "true",
        "enableTestCommands": "1",
        "localLogicalSessionTimeoutMinutes": "7",
        "maxSessions": "5",
        "unknown": "2",
    }
    assert parameters_of_daemon(parameters) == {"verifyMigrations": "true"}
    of_sessions = {"localLogicalSessionTimeoutMinutes": "7", "maxSessions": "5"}
    assert parameters_of_router(parameters) == {"enableTestCommands": "1", **of_sessions}
    # A mongod itself reports parameters that it does not know.
    assert parameters_of_mongod(parameters) == {"orphanCleanupDelaySecs": "1", **of_sessions, "unknown": "2"}
    assert parameters_of_config_mongod(parameters) == {"localLogicalSessionTimeoutMinutes": "7"}


def test_diagnostic_data_is_turned_off_on_all_mongods() -> None:
    parameters = {"diagnosticDataCollectionEnabled": "false"}
    assert parameters_of_config_mongod(parameters) == parameters_of_mongod(parameters) == parameters
    assert parameters_of_daemon(parameters) == parameters_of_router(parameters) == {}


def test_shard_daemons_are_started_with_their_parameters(tmp_path: Path) -> None:
    ports = count(20_000)
    topology = Topology.plan(Size(), router_port=lambda _: 27_017, free_ports=lambda _: next(ports))
    state = ClusterState(
        topology,
        "/bin/mongod",
        0.25,
        1,
        tmp_path / "sockets",
        {"verifyMigrations": "true", "rangeDeleterBatchSize": "5", "enableTestCommands": "1"},
    )
    started = {
        plan.name: " ".join(daemon_arguments(Layout(tmp_path), state, plan))
        for plan in topology.of_role(Role.ROUTER, Role.CONFIGD, Role.SHARDD)
    }
    assert [name for name, line in started.items() if "verifyMigrations" in line] == [
        "shard0.0.shardd",
        "shard1.0.shardd",
    ]
    assert started["shard0.0.shardd"].endswith(" --set-parameter verifyMigrations=true")
    assert [name for name, line in started.items() if "enableTestCommands=1" in line] == ["router.0"]
