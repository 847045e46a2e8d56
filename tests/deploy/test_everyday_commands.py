"""`ps`, `logs`, `connect` and `destroy` on a cluster with access control and TLS."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.waiting import eventually
from tests.local_cluster import RunningCluster, running_cluster, shardwright


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """A cluster of one shard that the last test deletes."""
    with running_cluster(tmp_path_factory.mktemp("own"), "--shards", "1", "--auth", "--tls") as running:
        yield running


def test_ps_shows_states_versions_and_memory(own: RunningCluster) -> None:
    completed = shardwright("ps", "--json", "--dir", str(own.directory))
    assert completed.returncode == 0, completed.stderr
    found = {each["name"]: each for each in json.loads(completed.stdout)["processes"]}
    pids = {each["name"]: each["pid"] for each in own.document["processes"]}
    assert {name: each["pid"] for name, each in found.items()} == pids
    assert {name: each["state"] for name, each in found.items()} == {
        name: "PRIMARY" if name.endswith("mongod") else "ready" for name in pids
    }
    assert found["shard0.0.mongod"]["version"].startswith(("6.", "7.", "8."))
    assert all(each["version"] and each["memoryBytes"] > 2**20 for each in found.values())
    assert all(0 <= each["uptimeSeconds"] < 3600 for each in found.values())


def test_ps_shows_what_does_not_run(own: RunningCluster) -> None:
    stop = own.document["processes"][0]
    assert shardwright("kill", stop["name"], "--dir", str(own.directory)).returncode == 0

    def states() -> dict[str, str]:
        completed = shardwright("ps", "--json", "--dir", str(own.directory))
        return {each["name"]: each["state"] for each in json.loads(completed.stdout)["processes"]}

    eventually(
        lambda: states()["config.0.configd"].startswith("mongod cannot be reached"), what="the daemon is not ready"
    )
    assert states()["config.0.mongod"] == "stopped"
    assert shardwright("restart", stop["name"], "--dir", str(own.directory)).returncode == 0
    eventually(lambda: states()["config.0.configd"] == "ready", what="the daemon is ready")


def test_connect_logs_in(own: RunningCluster) -> None:
    code = "print(db.adminCommand('connectionStatus').authInfo.authenticatedUsers[0].user, db.hello().msg)"
    completed = shardwright("connect", "--dir", str(own.directory), "--", "--quiet", "--eval", code)
    assert completed.stdout.split() == ["root", "isdbgrid"], completed.stderr


def test_logs_prints_the_end(own: RunningCluster) -> None:
    completed = shardwright("logs", "router.0", "--lines", "2", "--dir", str(own.directory))
    lines = Path(own.document["processes"][-1]["log"]).read_text().splitlines()
    assert set(completed.stdout.splitlines()) <= set(lines)
    assert len(completed.stdout.splitlines()) == 2
    assert "no process is called" in shardwright("logs", "nobody", "--dir", str(own.directory)).stderr


def test_destroy_asks_and_leaves_nothing(own: RunningCluster) -> None:
    completed = shardwright("destroy", "--dir", str(own.directory))
    assert completed.returncode == 1
    assert "give --yes" in completed.stderr
    assert own.status()["processes"][0]["pid"]
    (own.directory / "mine").touch()
    completed = shardwright("destroy", "--yes", "--dir", str(own.directory))
    assert completed.returncode == 0, completed.stderr
    assert [path.name for path in own.directory.iterdir()] == ["mine"]
