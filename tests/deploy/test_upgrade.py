"""The output of ``shardwright finish-upgrade``, and its errors; ``test_rolling_upgrade.py`` runs it."""

import pytest

from shardwright.deploy.command_line import argument_parser
from shardwright.deploy.errors import DeployError
from shardwright.deploy.upgrade import finish_upgrade, run_finish_upgrade, upgrade_text


def test_a_finished_upgrade_is_reported() -> None:
    assert upgrade_text({"featureVersion": 2, "newest": 2}) == (
        "the cluster has feature version 2, the newest one of its daemons' release"
    )


def test_a_dry_run_names_what_is_in_the_way() -> None:
    text = upgrade_text({"featureVersion": 1, "newest": 2, "obstacles": ["a:1 is old", "b:2 is away"]})
    assert text.splitlines() == [
        "the cluster has feature version 1; finish-upgrade would raise it to 2",
        "  in the way: a:1 is old",
        "  in the way: b:2 is away",
    ]


def test_a_cluster_that_does_not_answer() -> None:
    with pytest.raises(DeployError, match="the cluster does not answer: "):
        finish_upgrade("mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=50", {})


def test_a_malformed_connection_string() -> None:
    options = argument_parser().parse_args(["finish-upgrade", "--uri", "mongodb:///nowhere"])
    with pytest.raises(DeployError, match="the connection string cannot be used: "):
        run_finish_upgrade(options)
