"""The directory of a cluster; one that others have prepared, or may change, is not used."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from shardwright.deploy import layout as cluster_layout
from shardwright.deploy.cluster import LocalCluster
from shardwright.deploy.cluster_state import FORMAT, ClusterState
from shardwright.deploy.errors import DeployError
from shardwright.deploy.layout import SOCKET_PATH_BYTES_MAX, DamagedStateError, Layout, check_ownership, remove_sockets
from shardwright.deploy.steps import Steps
from shardwright.deploy.supervisor import daemon_arguments
from shardwright.deploy.topology import Role, Size, Topology
from tests.local_cluster import shardwright

EVERYBODY = 0o777


@pytest.fixture
def state(tmp_path: Path) -> ClusterState:
    ports = count(20_000)
    topology = Topology.plan(Size(), router_port=lambda _: 27_017, free_ports=lambda _: next(ports))
    return ClusterState(topology, "/usr/bin/mongod", 0.25, 1, Layout(tmp_path).choose_sockets())


def test_saved_state_is_loaded(tmp_path: Path, state: ClusterState) -> None:
    layout = Layout(tmp_path)
    layout.save(state)
    assert layout.load() == state


def test_missing_and_empty_directories_contain_no_cluster(tmp_path: Path) -> None:
    assert Layout(tmp_path).load() is None
    assert Layout(tmp_path / "missing").load() is None
    with pytest.raises(DeployError, match="there is no cluster in"):
        Layout(tmp_path).require()


def test_directory_of_another_version_is_refused(tmp_path: Path, state: ClusterState) -> None:
    layout = Layout(tmp_path)
    layout.save(state)
    document = json.loads(layout.state_file.read_text())
    layout.state_file.write_text(json.dumps({**document, "format": FORMAT + 1}))
    with pytest.raises(DeployError, match=rf"another version \(format {FORMAT + 1}, this is format {FORMAT}\)"):
        layout.load()


def test_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(DeployError, match=r"holds no cluster \(it has thesis\.tex\)"):
        Layout(tmp_path).load()


@pytest.mark.parametrize("text", ["", "{", "\0", "[]", "null", '"format"', "{}"])
def test_damaged_state_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(DamagedStateError, match="cannot read"):
        Layout(tmp_path).load()


@pytest.mark.parametrize("text", ["[]", "null"])
def test_cluster_with_a_damaged_state_can_be_stopped(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cluster.json").write_text(text)
    LocalCluster(tmp_path, Steps()).down()
    assert "it does not describe a cluster" in capsys.readouterr().err


@pytest.mark.parametrize("length", [20, 59, 60, 120, 400])
def test_socket_paths_fit_whatever_the_directory(length: int) -> None:
    layout = Layout(Path("/" + "d" * (length - 1)))
    sockets = layout.choose_sockets()
    assert len(os.fsencode(sockets / "mongodb-65535.sock")) <= SOCKET_PATH_BYTES_MAX
    assert len(os.fsencode(sockets / "config.10.configd" / "127.0.0.1:65535.sock")) <= SOCKET_PATH_BYTES_MAX


def test_daemons_with_their_own_socket_directories_do_not_find_each_other(tmp_path: Path, state: ClusterState) -> None:
    layout = Layout(tmp_path)
    together = replace(state, sockets=layout.choose_sockets())
    separate = replace(together, separate_sockets=True)
    layout.create(separate)
    try:
        layout.save(separate)
        assert layout.load() == separate
        daemons = [plan for plan in state.topology.processes if plan.role is not Role.MONGOD]
        for given, count_expected in ((together, 1), (separate, len(daemons))):
            arguments = [daemon_arguments(layout, given, plan) for plan in daemons]
            directories = {words[words.index("--unix-socket-directory") + 1] for words in arguments}
            assert len(directories) == count_expected
            assert all(Path(directory).is_dir() for directory in directories)
    finally:
        remove_sockets(separate.sockets)


def test_socket_paths_fit_whatever_the_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/" + "t" * 100)
    assert Layout(tmp_path / ("d" * 120)).choose_sockets().parent == Path("/tmp")


def test_only_the_owner_can_enter_the_socket_directory(tmp_path: Path, state: ClusterState) -> None:
    layout = Layout(tmp_path)
    layout.create(state)
    assert state.sockets.stat().st_mode & 0o777 == 0o700
    assert layout.data("shard0.0.mongod").is_dir()


@pytest.fixture
def long(tmp_path: Path) -> Layout:
    """A directory whose path is too long for sockets."""
    layout = Layout(tmp_path / ("d" * 120))
    layout.root.mkdir()
    return layout


def test_sockets_outside_are_found_where_they_were_created(
    long: Layout, state: ClusterState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if TMPDIR differs in the session of a later command."""
    long.save(replace(state, sockets=long.choose_sockets()))
    saved = long.require().sockets
    with tempfile.TemporaryDirectory() as other:
        monkeypatch.setattr(tempfile, "tempdir", other)
        assert long.choose_sockets() != saved
        assert long.require().sockets == saved


def test_copy_of_a_directory_has_its_own_sockets(long: Layout, state: ClusterState) -> None:
    long.save(replace(state, sockets=long.choose_sockets()))
    copy = Layout(long.root.with_name("c" * 120))
    shutil.copytree(long.root, copy.root)
    assert copy.require().sockets != long.require().sockets
    moved = Layout(long.root.rename(long.root.with_name("m" * 120)))
    assert moved.require().sockets == long.choose_sockets()


def test_socket_directory_outside_of_a_long_directory_is_removed(long: Layout, state: ClusterState) -> None:
    sockets = long.choose_sockets()
    long.create(replace(state, sockets=sockets))
    assert long.root not in sockets.parents
    assert sockets.is_dir()
    remove_sockets(sockets)
    assert not sockets.exists()


def test_only_socket_directories_are_removed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    remove_sockets(precious)
    assert precious.is_dir()


def test_older_state_file_gets_defaults_for_missing_fields(tmp_path: Path, state: ClusterState) -> None:
    change_state(tmp_path, state, without=("workers", "cacheGB", "parameters", "logRotate", "directory"))
    layout = Layout(tmp_path)
    assert layout.load() == replace(state, sockets=layout.choose_sockets())


@pytest.mark.parametrize("key", ["size", "processes"])
def test_state_file_without_an_essential_field_is_refused(tmp_path: Path, state: ClusterState, key: str) -> None:
    change_state(tmp_path, state, without=(key,))
    with pytest.raises(DeployError, match=f"another version of shardwright.*'{key}'.*or another --dir"):
        Layout(tmp_path).load()


@pytest.mark.parametrize("field", ["port", "metrics_port", "role"])
def test_processes_without_a_required_field_are_refused(tmp_path: Path, state: ClusterState, field: str) -> None:
    document = change_state(tmp_path, state)
    for process in document["processes"]:
        del process[field]
    Layout(tmp_path).state_file.write_text(json.dumps(document))
    with pytest.raises(DeployError, match=f"another version of shardwright.*{field}"):
        Layout(tmp_path).load()


def change_state(directory: Path, state: ClusterState, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """Write a state file without some keys; returns its contents."""
    layout = Layout(directory)
    layout.save(state)
    document: dict[str, Any] = json.loads(layout.state_file.read_bytes())
    for key in without:
        del document[key]
    layout.state_file.write_text(json.dumps(document))
    return document


def test_second_command_is_refused_while_one_changes_the_cluster(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    with layout.lock(), pytest.raises(DeployError, match="another shardwright command"), Layout(tmp_path).lock():
        pass
    with layout.lock():
        pass


def test_commands_name_the_directory_unless_it_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Layout(tmp_path / ".shardwright").command("restart", "router.0") == "shardwright restart router.0"
    other = Layout(tmp_path / "a b")
    assert other.command("up") == f"shardwright up --dir '{tmp_path}/a b'"
    with pytest.raises(DeployError, match="start one with `shardwright up --dir '"):
        other.require()


def test_a_failure_before_there_is_a_cluster_leaves_nothing(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "new" / "cluster")
    with pytest.raises(DeployError, match="refused"), layout.lock():
        raise DeployError("refused")
    assert list(tmp_path.iterdir()) == []
    layout.root.mkdir(parents=True)
    with pytest.raises(DeployError, match="refused"), layout.lock():
        raise DeployError("refused")
    assert list(layout.root.iterdir()) == []
    layout.state_file.touch()
    with pytest.raises(DeployError, match="refused"), layout.lock():
        raise DeployError("refused")
    assert {path.name for path in layout.root.iterdir()} == {"cluster.json", "lock"}


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
        monkeypatch.setattr(cluster_layout, "_ROOT_UID", -1)
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
    (layout.root / "auth" / "password").touch(0o600)  # written with the first user
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
