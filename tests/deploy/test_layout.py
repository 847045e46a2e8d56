import json
import os
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from deploy.daemons import daemon_arguments
from deploy.errors import DeployError
from deploy.layout import FORMAT, SOCKET_PATH_BYTES_MAX, ClusterState, Layout
from deploy.topology import Role, Size, Topology


@pytest.fixture
def state() -> ClusterState:
    ports = count(20_000)
    topology = Topology.plan(Size(), router_port=lambda _: 27_017, free_ports=lambda _: next(ports))
    return ClusterState(topology, "/usr/bin/mongod", 0.25, 1)


def test_saved_state_is_loaded(tmp_path: Path, state: ClusterState) -> None:
    layout = Layout(tmp_path)
    layout.save(state)
    assert layout.load() == state


def test_missing_and_empty_directories_hold_no_cluster(tmp_path: Path) -> None:
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


def test_unreadable_state_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text("{")
    with pytest.raises(DeployError, match="cannot read"):
        Layout(tmp_path).load()


@pytest.mark.parametrize("length", [20, 59, 60, 120, 400])
def test_socket_paths_fit_whatever_the_directory(length: int) -> None:
    layout = Layout(Path("/" + "d" * (length - 1)))
    assert len(os.fsencode(layout.sockets / "mongodb-65535.sock")) <= SOCKET_PATH_BYTES_MAX
    separate = layout.daemon_sockets("config.10.configd")
    assert len(os.fsencode(separate / "127.0.0.1:65535.sock")) <= SOCKET_PATH_BYTES_MAX


def test_daemons_with_socket_directories_of_their_own_find_none_of_the_others(
    tmp_path: Path, state: ClusterState
) -> None:
    layout, separate = Layout(tmp_path), replace(state, separate_sockets=True)
    names = [plan.name for plan in state.topology.processes]
    layout.create(names)
    layout.create_daemon_sockets(names)
    layout.save(separate)
    assert layout.load() == separate
    daemons = [plan for plan in state.topology.processes if plan.role is not Role.MONGOD]
    for given, count_expected in ((state, 1), (separate, len(daemons))):
        arguments = [daemon_arguments(layout, given, plan) for plan in daemons]
        directories = {words[words.index("--unix-socket-directory") + 1] for words in arguments}
        assert len(directories) == count_expected
        assert all(Path(directory).is_dir() for directory in directories)


def test_only_the_owner_enters_the_socket_directory(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.create(["shard0.0.mongod"])
    assert layout.sockets.stat().st_mode & 0o777 == 0o700
    assert layout.data("shard0.0.mongod").is_dir()


def test_socket_directory_outside_of_a_long_directory_is_removed(tmp_path: Path) -> None:
    layout = Layout(tmp_path / ("d" * 120))
    layout.create([])
    assert layout.root not in layout.sockets.parents
    assert layout.sockets.is_dir()
    layout.remove_sockets()
    assert not layout.sockets.exists()


def test_second_command_is_refused_while_one_changes_the_cluster(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    with layout.lock(), pytest.raises(DeployError, match="another shardwright command"), Layout(tmp_path).lock():
        pass
    with layout.lock():
        pass
