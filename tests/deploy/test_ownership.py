"""A directory that others have prepared, or may change, is not used."""

import json
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from shardwright.deploy import ownership
from shardwright.deploy.cluster_state import ClusterState
from shardwright.deploy.errors import DeployError
from shardwright.deploy.layout import Layout
from shardwright.deploy.ownership import check_ownership
from shardwright.deploy.topology import Size, Topology
from tests.local_cluster import shardwright

EVERYBODY = 0o777


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "cluster")


@pytest.fixture
def make(layout: Layout) -> Callable[[bool], ClusterState]:
    """Creates a directory, with access control or without, and returns its state."""

    def make(has_access_control: bool) -> ClusterState:
        ports = count(20_000)
        topology = Topology.plan(Size(), router_port=lambda _: 27_017, free_ports=lambda _: next(ports))
        sockets = layout.root / "sockets"
        state = ClusterState(topology, "/usr/bin/mongod", 0.25, 1, sockets, has_access_control=has_access_control)
        with layout.lock():
            layout.create(state)
            layout.save(state)
        return state

    return make


@pytest.fixture
def another_user(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on, all files belong to another user than the one of the process, who is not the administrator."""

    def become() -> None:
        other = os.geteuid() + 1
        monkeypatch.setattr(ownership, "_ROOT", -1)
        monkeypatch.setattr(os, "geteuid", lambda: other)

    return become


@pytest.mark.parametrize("has_access_control", [False, True])
def test_ones_own_directory_is_used_whatever_the_umask(
    layout: Layout, make: Callable[[bool], ClusterState], has_access_control: bool
) -> None:
    before = os.umask(0)
    try:
        check_ownership(layout, make(has_access_control))
    finally:
        os.umask(before)
    writable = [path for path in (layout.root, *layout.root.rglob("*")) if path.stat().st_mode & 0o022]
    assert writable == []


@pytest.mark.parametrize("has_access_control", [False, True])
def test_another_users_directory_is_not(
    layout: Layout, make: Callable[[bool], ClusterState], another_user: Callable[[], None], has_access_control: bool
) -> None:
    state = make(has_access_control)
    another_user()
    with pytest.raises(DeployError, match=r"cluster\.json belongs to another user"):
        check_ownership(layout, state)


@pytest.mark.parametrize("name", [".", "sockets", "auth", "auth/key", "auth/password"])
def test_secrets_that_everybody_may_exchange_are_not(
    layout: Layout, make: Callable[[bool], ClusterState], name: str
) -> None:
    state = make(True)
    (layout.root / name).chmod(EVERYBODY)
    with pytest.raises(DeployError, match="all users may write to"):
        check_ownership(layout, state)


def test_nothing_is_started_in_a_directory_for_everybody(tmp_path: Path) -> None:
    directory = tmp_path / "open"
    directory.mkdir()
    directory.chmod(EVERYBODY)
    up = shardwright("up", "--auth", "--shards", "1", "--port", "0", "--detach", "--dir", str(directory))
    assert up.returncode == 1
    assert f"all users may write to {directory}" in up.stderr
    status = json.loads(shardwright("status", "--json", "--dir", str(directory)).stdout)
    assert [process["pid"] for process in status["processes"] if process["pid"] is not None] == []
