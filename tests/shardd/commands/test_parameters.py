"""Server parameters of the shard daemon and of its mongod, through the daemon."""

from collections.abc import Iterator

import pytest
from pymongo.errors import OperationFailure

from shardwright.shardd.commands.command import parse_parameter
from tests.shardd.mini_cluster import Client, MiniCluster


@pytest.fixture
def daemon(mini: MiniCluster) -> Iterator[Client]:
    """A client of a shard daemon with MongoDB's defaults; its parameters are restored afterwards."""
    with mini.shard_client("sh0") as client:
        defaults = {"verifyMigrations": False, "orphanCleanupDelaySecs": 900}
        before = {name: client.admin.command({"getParameter": 1, name: 1})[name] for name in defaults}
        client.admin.command({"setParameter": 1, **defaults})
        yield client
        client.admin.command({"setParameter": 1, **before})


def test_own_parameters(daemon: Client) -> None:
    assert daemon.admin.command("setParameter", 1, verifyMigrations=True)["was"] is False
    assert daemon.admin.command("getParameter", 1, verifyMigrations=1)["verifyMigrations"] is True


def test_parameters_of_both_in_one_command(daemon: Client) -> None:
    reply = daemon.admin.command("setParameter", 1, orphanCleanupDelaySecs=7, verifyMigrations=True)
    assert reply["was"] == 900
    found = daemon.admin.command("getParameter", 1, orphanCleanupDelaySecs=1, verifyMigrations=1)
    assert (found["orphanCleanupDelaySecs"], found["verifyMigrations"]) == (7, True)


def test_mongod_cuts_a_delay_to_whole_seconds(daemon: Client) -> None:
    daemon.admin.command("setParameter", 1, orphanCleanupDelaySecs=1.5)
    assert daemon.admin.command("getParameter", 1, orphanCleanupDelaySecs=1)["orphanCleanupDelaySecs"] == 1


def test_all_parameters(daemon: Client) -> None:
    found = daemon.admin.command("getParameter", "*")
    assert {"verifyMigrations", "migrationCatchUpTimeoutSecs", "rangeDeleterBatchSize"} <= set(found)
    details = daemon.admin.command("getParameter", {"showDetails": True, "allParameters": True})
    assert details["verifyMigrations"] == {"value": False, "settableAtRuntime": True, "settableAtStartup": True}
    assert details["rangeDeleterBatchSize"]["settableAtStartup"] is True


@pytest.mark.parametrize("change", [{"nobodyKnowsThis": 1}, {"migrationCatchUpTimeoutSecs": 0}, {}])
def test_invalid_values_are_refused_by_the_daemon_and_by_mongod(daemon: Client, change: dict[str, object]) -> None:
    with pytest.raises(OperationFailure):
        daemon.admin.command({"setParameter": 1, **change})


def test_on_the_command_line() -> None:
    assert parse_parameter("verifyMigrations=true") == ("verifyMigrations", True)
    assert parse_parameter("autoSplitChunks=false") == ("autoSplitChunks", False)
    assert parse_parameter("migrationCatchUpTimeoutSecs=2.5") == ("migrationCatchUpTimeoutSecs", 2.5)


@pytest.mark.parametrize(
    "text",
    [
        "verifyMigrations",
        "verifyMigrations=perhaps",
        "migrationCatchUpTimeoutSecs=-1",
        "unknown=1",
        "autoSplitGrowthFraction=1.5",
    ],
)
def test_refused_on_the_command_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"NAME=VALUE|true nor false|number of seconds|up to 1"):
        parse_parameter(text)
