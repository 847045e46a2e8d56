"""The life cycle of clusters, from ``up`` to ``down``, through the ``shardwright`` command."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from pymongo import MongoClient

from shardwright.deploy.layout import Layout
from shardwright.deploy.processes import ProcessIdentity, save_pid_file
from tests.integration.waiting import eventually
from tests.local_cluster import COMMAND_TIMEOUT, RunningCluster, running_cluster, shardwright

SMALL = ("--shards", "1")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """A one-shard cluster that these tests may stop and damage, but leave running."""
    with running_cluster(tmp_path_factory.mktemp("own"), *SMALL) as running:
        yield running


def processes_of(directory: Path) -> list[str]:
    """Command lines of the running processes that mention ``directory``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and ProcessIdentity.of(int(entry.name)) is not None:
            try:
                command = (entry / "cmdline").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if str(directory) in command and "shardwright.deploy.cli" not in command:
                found.append(command.replace("\0", " "))
    return found


def test_json_describes_the_cluster(own: RunningCluster) -> None:
    document = own.document
    assert set(document) == {"uri", "dir", "processes", "shards", "metrics"}
    assert [(process["name"], process["role"]) for process in document["processes"]] == [
        ("config.0.mongod", "mongod"),
        ("shard0.0.mongod", "mongod"),
        ("config.0.configd", "configd"),
        ("shard0.0.shardd", "shardd"),
        ("router.0", "router"),
    ]
    assert all(set(process) == {"name", "role", "address", "pid", "log"} for process in document["processes"])
    assert document["shards"] == [{"_id": "shard0", "host": f"shard0/{own.address('shard0.0.shardd')}"}]
    assert document["uri"] == f"mongodb://{own.address('router.0')}/"
    assert set(document["metrics"]) == {"config.0.configd", "shard0.0.shardd", "router.0"}
    assert own.status() == {**document, "migrations": [], "reshardings": []}


def test_listed_shards_are_those_of_the_json_line(own: RunningCluster) -> None:
    with own.client() as client:
        listed = client.admin.command("listShards")["shards"]
    assert {shard["_id"]: shard["host"] for shard in listed} == own.shards


def test_test_write_leaves_nothing_behind(own: RunningCluster) -> None:
    with own.client() as client:
        assert "shardwright_probe" not in client.list_database_names()


def test_second_up_is_refused(own: RunningCluster) -> None:
    completed = shardwright("up", "--dir", str(own.directory), "--detach")
    assert completed.returncode == 1
    directory = own.directory.resolve()
    assert f"is running; see `shardwright status --dir {directory}`" in completed.stderr
    assert f"stop it with `shardwright down --dir {directory}`" in completed.stderr
    assert own.status() == {**own.document, "migrations": [], "reshardings": []}


def test_down_and_up_keeps_data_and_ports(own: RunningCluster) -> None:
    with own.client() as client:
        client["launcher"]["kept"].insert_one({"_id": 1, "text": "survives"})
    own.down()
    assert processes_of(own.directory) == []
    stopped = own.status()
    assert all(process["pid"] is None for process in stopped["processes"])
    shown = shardwright("status", "--dir", str(own.directory)).stdout
    assert "connect with" not in shown
    assert shown.endswith(f"the cluster is stopped: start it with `shardwright up --dir {own.directory.resolve()}`\n")
    completed = shardwright("up", "--detach", "--json", "--dir", str(own.directory))
    assert completed.returncode == 0, completed.stderr
    again = json.loads(completed.stdout)
    assert without_pids(again) == without_pids(own.document)
    with own.client() as client:
        assert client["launcher"]["kept"].find_one() == {"_id": 1, "text": "survives"}


def test_parameters_and_options_are_kept_until_changed(own: RunningCluster) -> None:
    def bring_back(*options: str) -> tuple[int, int]:
        own.down()
        completed = shardwright("up", "--detach", "--dir", str(own.directory), *options)
        assert completed.returncode == 0, completed.stderr
        with own.direct("shard0.0.mongod") as shard, own.direct("config.0.mongod") as config:
            ask = {"getParameter": 1, "orphanCleanupDelaySecs": 1, "rangeDeleterBatchSize": 1}
            found = shard.admin.command(ask)
            assert config.admin.command(ask)["orphanCleanupDelaySecs"] == 900
        return found["orphanCleanupDelaySecs"], found["rangeDeleterBatchSize"]

    def router_has(option: str) -> bool:
        (line,) = [line for line in processes_of(own.directory) if "shardwright.router.main" in line]
        return option in line

    kept = ("--set-parameter", "rangeDeleterBatchSize=5", "--router-option", "max-connections=77")
    assert bring_back("--orphan-cleanup-delay", "3", *kept) == (3, 5)
    assert router_has("--max-connections=77")
    assert bring_back() == (3, 5)
    assert router_has("--max-connections=77")
    assert bring_back("--orphan-cleanup-delay", "900", "--router-option", "max-connections=") == (900, 5)
    assert not router_has("--max-connections")


def test_contradicting_options_are_refused(tmp_path: Path, own: RunningCluster) -> None:
    own.down()
    completed = shardwright("up", "--dir", str(own.directory), "--detach", "--shards", "2")
    assert completed.returncode == 1
    assert "was created with --shards 1; omit --shards 2" in completed.stderr
    assert shardwright("up", "--detach", "--dir", str(own.directory)).returncode == 0


@pytest.mark.parametrize(
    "name", ["shard0.0.mongod", "shard0.0.shardd", "config.0.mongod", "config.0.configd", "router.0"]
)
def test_kill_and_restart(own: RunningCluster, name: str) -> None:
    before = own.pid(name)
    own.run("kill", name)
    status = shardwright("status", "--dir", str(own.directory))
    assert status.returncode == 1
    assert re.search(rf"^{re.escape(name)} .* not running ", status.stdout, re.MULTILINE)
    again = shardwright("kill", name, "--dir", str(own.directory))
    assert (again.returncode, again.stderr) == (1, f"shardwright: {name} is not running\n")
    own.run("restart", name)
    assert own.pid(name) != before
    with own.client(serverSelectionTimeoutMS=20_000) as client:
        # A retryable write, as any driver sends it, right after the restart.
        client["launcher"]["restarts"].insert_one({"restarted": name})


def test_paused_process_continues(own: RunningCluster) -> None:
    pid = own.pid("shard0.0.shardd")
    own.run("kill", "shard0.0.shardd", "--signal", "STOP")
    stat = Path(f"/proc/{pid}/stat")
    eventually(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", what="the process has stopped")
    own.run("kill", "shard0.0.shardd", "--signal", "CONT")
    assert own.pid("shard0.0.shardd") == pid


def test_recycled_pid_survives_down(own: RunningCluster) -> None:
    """The pid file of an ended process may contain a pid that another process has now: here, this test's."""
    own.run("kill", "router.0")
    me = ProcessIdentity.of(os.getpid())
    assert me is not None
    layout = Layout(own.directory)
    former = ProcessIdentity(me.pid, "an earlier boot:1")
    save_pid_file(layout.pid_file("router.0"), former, layout.root, layout.identity())
    own.down()
    assert me.is_running()
    assert shardwright("up", "--detach", "--dir", str(own.directory)).returncode == 0


def test_start_that_takes_too_long_leaves_nothing_running(tmp_path: Path) -> None:
    completed = shardwright("up", "--port", "0", "--dir", str(tmp_path), "--timeout", "0.2", *SMALL)
    assert completed.returncode == 1
    assert "in time" in completed.stderr
    assert processes_of(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_foreground_stops_everything_in_order(tmp_path: Path, number: signal.Signals) -> None:
    with foreground(tmp_path) as launcher:
        assert launcher.stdout is not None
        document = json.loads(launcher.stdout.readline())
        with MongoClient[dict[str, Any]](document["uri"]) as client:
            client["launcher"]["written"].insert_one({})
        launcher.send_signal(number)
        _, log = launcher.communicate(timeout=COMMAND_TIMEOUT)
    assert launcher.returncode == 0, log
    assert re.findall(r"stopping \d+ (\w+?)s?\b", log) == ["router", "shardd", "configd", "mongod"]
    assert "was killed" not in log
    assert processes_of(tmp_path) == []


def test_foreground_reports_a_death_and_ends_with_down(tmp_path: Path) -> None:
    with foreground(tmp_path) as launcher:
        assert launcher.stdout is not None
        assert launcher.stderr is not None
        launcher.stdout.readline()
        assert shardwright("kill", "router.0", "--dir", str(tmp_path)).returncode == 0
        report = next(line for line in launcher.stderr if line.startswith("router.0"))
        again = f"shardwright restart router.0 --dir {tmp_path}"
        assert report == f"router.0 was ended by SIGKILL; `{again}` starts it again\n"
        assert shardwright("restart", "router.0", "--dir", str(tmp_path)).returncode == 0
        assert shardwright("down", "--dir", str(tmp_path)).returncode == 0
        _, rest = launcher.communicate(timeout=COMMAND_TIMEOUT)
    assert launcher.returncode == 0
    assert rest.endswith("the cluster was stopped\n")
    assert processes_of(tmp_path) == []


@contextmanager
def foreground(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """A launcher in the foreground, which prints its line of JSON on standard output."""
    command = [
        sys.executable,
        "-m",
        "shardwright.deploy.cli",
        "up",
        "--json",
        "--port",
        "0",
        "--dir",
        str(directory),
        *SMALL,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as launcher:
        try:
            yield launcher
        finally:
            launcher.terminate()


def without_pids(document: dict[str, Any]) -> dict[str, Any]:
    """``document`` without pids."""
    processes = [{key: value for key, value in process.items() if key != "pid"} for process in document["processes"]]
    return {**document, "processes": processes}


def test_each_worker_of_a_router_has_metrics(tmp_path: Path) -> None:
    """Worker i has the router's metrics port plus i, even after the cluster is restarted."""
    with running_cluster(tmp_path / "cluster", *SMALL, "--workers", "3") as running:
        check_metrics_of_workers(running, 3)
        running.down()
        completed = shardwright("up", "--detach", "--dir", str(running.directory))
        assert completed.returncode == 0, completed.stderr
        check_metrics_of_workers(running, 3)


def check_metrics_of_workers(running: RunningCluster, workers: int) -> None:
    """Check that each worker of the first router serves its metrics, once it has started."""
    host, _, port = running.metrics["router.0"].rpartition(":")
    for worker in range(workers):
        address = f"http://{host}:{int(port) + worker}/metrics"
        text = eventually(partial(answer_of, address), what=f"{address} answers")
        assert "shardwright_router_open_connections" in text


def answer_of(address: str) -> str | None:
    """Return the body of an HTTP reply; None while no process answers."""
    try:
        with urlopen(address, timeout=10) as reply:
            return str(reply.read(), "utf-8")
    except URLError:
        return None
