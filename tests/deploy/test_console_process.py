"""The console that `up` starts alongside a cluster."""

import re
import urllib.request
from pathlib import Path

import pytest

from shardwright.deploy.console_process import console_beside
from shardwright.deploy.errors import DeployError
from tests.local_cluster import RunningCluster, shardwright


def test_a_console_runs_within_the_block(cluster: RunningCluster) -> None:
    with console_beside(cluster.directory, 0) as line:
        found = re.search(r"http://\S+", line or "")
        assert found is not None
        with urllib.request.urlopen(found[0], timeout=60) as answer:
            assert answer.status == 200
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(found[0], timeout=10)


def test_without_a_port_there_is_none(tmp_path: Path) -> None:
    with console_beside(tmp_path, None) as line:
        assert line is None


def test_a_console_that_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(DeployError, match="did not start"), console_beside(tmp_path, 0):
        pass


def test_a_detached_cluster_has_none(tmp_path: Path) -> None:
    completed = shardwright("up", "--dir", str(tmp_path), "--detach", "--console-port", "0")
    assert completed.returncode == 1
    assert "needs the foreground" in completed.stderr
