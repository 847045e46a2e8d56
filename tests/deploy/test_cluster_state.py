"""Options and server parameters that ``up`` passes on to the processes."""

from itertools import count
from pathlib import Path

import pytest

from shardwright.deploy.cli import main
from shardwright.deploy.cluster_state import (
    ClusterState,
    check_options,
    combined,
    parameters_of_config_mongod,
    parameters_of_daemon,
    parameters_of_mongod,
    parameters_of_router,
    parse_option,
    parse_parameter,
)
from shardwright.deploy.errors import DeployError
from shardwright.deploy.layout import Layout
from shardwright.deploy.supervisor import daemon_arguments
from shardwright.deploy.topology import Role, Size, Topology


def test_leading_dashes_are_allowed() -> None:
    assert parse_option("--slow-ms=5") == parse_option("slow-ms=5") == ("slow-ms", "5")


@pytest.mark.parametrize("text", ["", "slow-ms", "=5", "---slow-ms=5", "two words=1", "slow-ms 5"])
def test_malformed_options_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="NAME=VALUE"):
        parse_option(text)


@pytest.mark.parametrize("name", ["port", "configdb", "workers", "mongod-socket", "log-file"])
def test_options_that_the_launcher_sets_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="sets itself"):
        parse_option(f"{name}=1")


def test_options_are_kept_changed_and_removed() -> None:
    before = combined({}, {Role.ROUTER: {"slow-ms": "5", "max-connections": "10"}})
    after = combined(before, {Role.ROUTER: {"slow-ms": "", "max-connections": "20"}, Role.SHARDD: {"slow-ms": "1"}})
    assert after == {Role.ROUTER: {"max-connections": "20"}, Role.SHARDD: {"slow-ms": "1"}, Role.CONFIGD: {}}


def test_every_daemon_of_a_role_is_started_with_its_options(tmp_path: Path) -> None:
    ports = count(20_000)
    topology = Topology.plan(Size(), router_port=lambda _: 27_017, free_ports=lambda _: next(ports))
    options = {Role.ROUTER: {"unread-reply-mb": "64"}, Role.SHARDD: {"slow-ms": "5"}}
    state = ClusterState(topology, "/bin/mongod", 0.25, 1, tmp_path / "sockets", daemon_options=options)
    layout = Layout(tmp_path)
    layout.save(state)
    loaded = layout.load()
    assert loaded is not None
    assert loaded.daemon_options == options
    started = {plan.name: daemon_arguments(layout, loaded, plan) for plan in topology.processes if plan.metrics_port}
    assert [name for name, words in started.items() if "--unread-reply-mb=64" in words] == ["router.0"]
    assert [name for name, words in started.items() if "--slow-ms=5" in words] == ["shard0.0.shardd", "shard1.0.shardd"]


@pytest.mark.parametrize(
    ("role", "name", "value", "reason"),
    [
        (Role.ROUTER, "config-seconds", "-1", "'-1' is not a number of seconds"),
        (Role.SHARDD, "config-seconds", "5", "the shardd has no option --config-seconds"),
        (Role.CONFIGD, "unread-reply", "5", "ambiguous option|the configd has no option --unread-reply"),
    ],
)
def test_the_daemon_reports_options_that_it_refuses(role: Role, name: str, value: str, reason: str) -> None:
    with pytest.raises(DeployError, match=reason):
        check_options({role: {name: value}})


def test_a_refused_option_leaves_no_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "cluster"
    assert main(["up", "--dir", str(directory), "--router-option", "unread-reply-mb=0"]) == 1
    assert "--router-option" in capsys.readouterr().err
    assert not directory.exists()


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
    assert parameters_of_config_mongod(parameters) == {
        "periodicNoopIntervalSecs": "1",
        "localLogicalSessionTimeoutMinutes": "7",
    }


def test_diagnostic_data_is_turned_off_on_all_mongods() -> None:
    parameters = {"diagnosticDataCollectionEnabled": "false"}
    assert parameters_of_mongod(parameters) == parameters
    assert parameters_of_config_mongod(parameters) == {"periodicNoopIntervalSecs": "1", **parameters}
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


def test_the_number_of_shapes_is_the_routers() -> None:
    parameters = {"queryStatsShapesMax": "7"}
    assert parameters_of_router(parameters) == parameters
    assert parameters_of_mongod(parameters) == parameters_of_daemon(parameters) == {}
