"""The directory of a running cluster: copied, damaged, created in another session, or incomplete."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardwright.deploy.layout import Layout
from shardwright.deploy.processes import directory_identity, marked_processes
from tests.integration.waiting import eventually
from tests.local_cluster import COMMAND_TIMEOUT, RunningCluster, running_cluster, shardwright

SMALL = ("--shards", "1")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """A cluster in a directory whose path is too long for sockets; all its tests but the last leave it running."""
    with running_cluster(tmp_path_factory.mktemp("own") / ("d" * 100), *SMALL) as running:
        yield running


def bring_back(cluster: RunningCluster) -> None:
    """Start the cluster again."""
    completed = shardwright("up", "--detach", "--dir", str(cluster.directory))
    assert completed.returncode == 0, completed.stderr


def pids(cluster: RunningCluster) -> dict[str, int | None]:
    """The pid of each running process."""
    return {process["name"]: process["pid"] for process in cluster.status()["processes"]}


def test_copy_does_not_control_the_original(own: RunningCluster, tmp_path: Path) -> None:
    before = pids(own)
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("cluster.json", "pids", "logs"):
        source = own.directory / name
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, copy / name)
    status = shardwright("status", "--dir", str(copy))
    assert status.returncode == 1
    assert len(re.findall(" not running ", status.stdout)) == len(before)
    assert f"{copy} is a copy of {own.directory}; its processes are not controlled from here" in status.stderr
    kill = shardwright("kill", "router.0", "--dir", str(copy))
    assert kill.returncode == 1
    assert "router.0 is not running" in kill.stderr
    assert "is in use" in shardwright("up", "--detach", "--dir", str(copy)).stderr
    assert shardwright("down", "--dir", str(copy)).returncode == 0
    assert pids(own) == before


def test_sockets_are_found_from_another_session(own: RunningCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    sockets = Layout(own.directory).require().sockets
    assert own.directory not in sockets.parents
    with tempfile.TemporaryDirectory() as other:
        monkeypatch.setenv("TMPDIR", other)
        own.run("restart", "shard0.0.shardd")
        assert os.listdir(other) == []
        own.down()
    assert not sockets.exists()
    monkeypatch.undo()
    bring_back(own)


def test_running_cluster_with_damaged_pid_files_is_shown_and_stopped(own: RunningCluster) -> None:
    before = pids(own)
    layout = Layout(own.directory)
    damaged = [layout.pid_file("router.0"), layout.pid_file("shard0.0.mongod")]
    damaged[0].write_bytes(b"")
    damaged[1].write_bytes(b'{"pid": 12')
    status = shardwright("status", "--dir", str(own.directory))
    assert status.returncode == 0
    for path in damaged:
        assert f"{path} is damaged" in status.stderr
    assert pids(own) == before
    own.run("restart", "router.0")
    assert f"{damaged[0]} is damaged" not in shardwright("status", "--dir", str(own.directory)).stderr
    own.down()
    assert marked_processes(directory_identity(own.directory)) == {}
    assert not any(path.exists() for path in damaged)
    bring_back(own)


def test_running_cluster_with_a_damaged_state_file_is_stopped(own: RunningCluster) -> None:
    layout = Layout(own.directory)
    kept = layout.state_file.read_bytes()
    layout.state_file.write_bytes(kept[: len(kept) // 2])
    assert "cannot read" in shardwright("status", "--dir", str(own.directory)).stderr
    down = shardwright("down", "--dir", str(own.directory))
    assert down.returncode == 0
    assert f"cannot read {layout.state_file}" in down.stderr
    assert re.findall(r"stopping \d+ (\w+?)s?\b", down.stderr) == ["router", "shardd", "configd", "mongod"]
    assert marked_processes(directory_identity(own.directory)) == {}
    layout.state_file.write_bytes(kept)


def test_up_that_was_killed_can_be_cleaned_up(tmp_path: Path) -> None:
    """Even if it was killed between the start of a process and the writing of its pid file."""
    command = [sys.executable, "-m", "shardwright.deploy.cli", "up", "--port", "0", "--dir", str(tmp_path), *SMALL]
    launcher = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    pid_file = Layout(tmp_path).pid_file("config.0.mongod")
    eventually(pid_file.exists, what="the first process is started")
    launcher.kill()
    launcher.wait()
    pid_file.unlink()
    again = shardwright("up", "--detach", "--dir", str(tmp_path))
    assert again.returncode == 1
    assert re.search(
        r"part of the cluster in \S+ is running \(config\.0\.mongod.*`shardwright down --dir", again.stderr
    )
    assert shardwright("down", "--dir", str(tmp_path)).returncode == 0
    assert marked_processes(directory_identity(tmp_path)) == {}


def test_up_that_cannot_write_leaves_the_directory_usable(tmp_path: Path) -> None:
    """A file size limit of 0 bytes simulates a full disk."""
    directory = tmp_path / "cluster"
    up = [sys.executable, "-m", "shardwright.deploy.cli", "up", "--port", "0", "--dir", str(directory), *SMALL]
    completed = subprocess.run(
        ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *up],
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT,
        check=False,
    )
    assert completed.returncode == 1
    error = completed.stderr.splitlines()[-1]
    assert error.startswith(f"shardwright: cannot write {directory / 'cluster.json'}: File too large; fix this")
    assert "Traceback" not in completed.stderr
    assert f"there is no cluster in {directory}" in shardwright("status", "--dir", str(directory)).stderr
    assert marked_processes(directory_identity(directory)) == {}
