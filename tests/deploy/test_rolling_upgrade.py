"""A cluster of the former release is upgraded process by process while clients with a driver's defaults write.

Nothing fails and nothing is lost, chunks move between daemons of both releases, and each kind of daemon goes back to
the former release before the upgrade is finished.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from shardwright.deploy.cli import connection_string
from shardwright.deploy.cluster import LocalCluster
from shardwright.deploy.cluster_state import DIAGNOSTIC_DATA
from shardwright.deploy.errors import DeployError
from shardwright.deploy.steps import Steps
from shardwright.deploy.upgrade import finish_upgrade
from shardwright.sharding.feature_version import NEWEST, knows
from tests.deploy.former_release import ROOT, absence, build, shardwright_of
from tests.integration.waiting import eventually

Client = MongoClient[dict[str, Any]]

ORDERS = "shop.orders"
RESTART_SECONDS_MAX = 60.0
MOVE_SECONDS_MAX = 90.0


@contextmanager
def _timed(what: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    print(f"{time.monotonic() - started:6.1f} s  {what}", file=sys.stderr)


class Cluster:
    """A cluster that was started by the former release, and the processes that are restarted.

    Args:
        directory: of the cluster.
        packages: of the former release.
    """

    def __init__(self, directory: Path, packages: Path, document: dict[str, Any]) -> None:
        self.directory = directory
        self.uri = connection_string(document)
        self.processes: list[dict[str, Any]] = document["processes"]
        self._document = document
        self._packages = packages
        self._present = LocalCluster(directory, Steps(StringIO()))

    def uri_of(self, address: str) -> str:
        """The connection string for one router."""
        return connection_string({**self._document, "uri": f"mongodb://{address}/"})

    def named(self, *roles: str) -> list[str]:
        """The names of all processes of some roles, in the order of the roles."""
        return [each["name"] for role in roles for each in self.processes if each["role"] == role]

    def upgrade(self, name: str) -> None:
        """Restart a process with this release."""
        with _timed(f"upgrade {name}"):
            self._present.restart(name, RESTART_SECONDS_MAX)
        assert self.is_upgraded(name)

    def go_back(self, name: str) -> None:
        """Restart a process with the former release."""
        with _timed(f"go back with {name}"):
            shardwright_of(self._packages, "restart", name, "--dir", str(self.directory))
        assert not self.is_upgraded(name)

    def is_upgraded(self, name: str) -> bool:
        """Whether a process runs this release."""
        [process] = [each for each in self.processes if each["name"] == name]
        without_log_in = {**self._document, "uri": f"mongodb://{process['address']}/", "auth": None}
        with MongoClient[dict[str, Any]](connection_string(without_log_in), directConnection=True) as client:
            if process["role"] == "router":
                return "finishUpgrade" in client.admin.command("listCommands")["commands"]
            return knows(client.admin.command("hello").get("extensions", ()), NEWEST)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of the former release."""
    reason = absence()
    if reason is not None:
        pytest.skip(reason)
    return build(tmp_path_factory.mktemp("former"))


@contextmanager
def former_cluster(directory: Path, packages: Path, *options: str) -> Iterator[Cluster]:
    """A cluster of the former release with two routers, which is down after the block."""
    words = ("--detach", "--json", "--port", "0", "--routers", "2", "--dir", str(directory), *options)
    # A chunk comes back only when its orphans are deleted.
    parameters = ("--set-parameter", f"{DIAGNOSTIC_DATA}=false", "--orphan-cleanup-delay", "0")
    try:
        document = json.loads(shardwright_of(packages, "up", *words, *parameters))
        cluster = Cluster(directory, packages, document)
        assert not any(map(cluster.is_upgraded, cluster.named("configd", "shardd", "router")))
        with MongoClient[dict[str, Any]](cluster.uri) as client:
            spread(client)
        yield cluster
    finally:
        if (directory / "cluster.json").exists():
            LocalCluster(directory, Steps(StringIO())).down()


def spread(client: Client) -> None:
    """Shard the collections of the load over both shards, so that transactions write on both."""
    client.admin.command("balancerStop")
    client.admin.command("enableSharding", "shop", primaryShard="shard0")
    client.admin.command("shardCollection", ORDERS, key={"_id": "hashed"}, numInitialChunks=8)
    client.admin.command("shardCollection", "shop.transfers", key={"side": 1})
    client.admin.command("split", "shop.transfers", middle={"side": "n"})
    client.admin.command("moveChunk", "shop.transfers", find={"side": "n"}, to="shard1")


@contextmanager
def load(uri: str) -> Iterator[dict[str, Any]]:
    """Write during the block; the result is there after it."""
    result: dict[str, Any] = {}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.deployment.load", uri, "upgrade"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "started\n"
            yield result
            output, _ = process.communicate(timeout=120)
            result.update(json.loads(output))
        finally:
            process.kill()


class Moves:
    """Moves a chunk to and fro. A move that fails because a daemon is restarted is repeated."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.done = 0
        self.failures: list[PyMongoError] = []

    def __enter__(self) -> "Moves":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join(MOVE_SECONDS_MAX)
        assert not self._thread.is_alive()

    def wait_for_one(self) -> None:
        """Wait until a chunk has moved from now on."""
        goal = self.done + 2  # the first may have begun before
        with _timed("two moves"):
            eventually(lambda: self.done >= goal, within=MOVE_SECONDS_MAX, what="chunks move")

    def _run(self) -> None:
        with MongoClient[dict[str, Any]](self._uri) as client:
            entry = client.config.collections.find_one({"_id": ORDERS})
            assert entry is not None
            chunk = client.config.chunks.find_one({"uuid": entry["uuid"], "shard": "shard0"})
            assert chunk is not None
            bounds = [chunk["min"], chunk["max"]]
            number = 1
            while not self._ends.wait(0.05):
                try:
                    client.admin.command("moveChunk", ORDERS, bounds=bounds, to=f"shard{number % 2}")
                except PyMongoError as error:
                    self.failures.append(error)
                else:
                    self.done += 1
                    number += 1


def upgrade_under_load(cluster: Cluster, names: list[str]) -> dict[str, Any]:
    """Upgrade the processes in this order, go back with one of each kind, upgrade again, and finish.

    Returns:
        The result of the load.
    """
    last = names[-1]
    with load(cluster.uri) as result, Moves(cluster.uri) as moves:
        for name in names:
            if name == last:
                check_refused(cluster, last)
            cluster.upgrade(name)
            moves.wait_for_one()
        one_of_each = [cluster.named(role)[0] for role in ("router", "shardd", "configd")]
        for name in one_of_each:
            cluster.go_back(name)
            moves.wait_for_one()
        for name in one_of_each:
            cluster.upgrade(name)
        assert feature_version(cluster) == 1
        finish(cluster)
        moves.wait_for_one()
    assert feature_version(cluster) == NEWEST
    return result


def check_refused(cluster: Cluster, last: str) -> None:
    """See that the upgrade cannot be finished while a process is of the former release."""
    [address] = [each["address"] for each in cluster.processes if each["name"] == last]
    upgraded = [each for each in cluster.processes if each["name"] in cluster.named("router") and each["name"] != last]
    with pytest.raises(DeployError, match=f"{address} does not know feature version {NEWEST}"):
        finish_upgrade(cluster.uri_of(upgraded[0]["address"]), {})


def finish(cluster: Cluster) -> None:
    """Finish the upgrade; routers that went back and were upgraded again have written their entries within 10 s."""

    def is_finished() -> bool:
        if finish_upgrade(cluster.uri, {}, is_dry_run=True)["obstacles"]:
            return False
        return bool(finish_upgrade(cluster.uri, {})["featureVersion"] == NEWEST)

    eventually(is_finished, what="the upgrade is finished")


def feature_version(cluster: Cluster) -> int:
    """The feature version that the config servers have."""
    return int(finish_upgrade(cluster.uri, {}, is_dry_run=True)["featureVersion"])


def check_load(result: dict[str, Any]) -> None:
    """See that nothing failed or was lost, and that something was written."""
    assert result["errors"] == []
    assert (result["lostInserts"], result["lostTransactions"], result["halves"]) == ([], [], [])
    assert result["inserts"] > 50
    assert result["transactions"] > 20


def test_a_cluster_is_upgraded_and_goes_back_under_load(tmp_path: Path, packages: Path) -> None:
    with former_cluster(tmp_path, packages) as cluster:
        check_load(upgrade_under_load(cluster, cluster.named("configd", "shardd", "router")))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "order",
    [
        lambda cluster: cluster.named("router", "shardd", "configd"),
        lambda cluster: cluster.named("shardd", "router", "configd"),
        lambda _: ["router.0", "shard1.0.shardd", "config.0.configd", "shard0.0.shardd", "router.1"],
    ],
    ids=["routers first", "shards first", "mixed"],
)
def test_the_order_of_daemons_does_not_matter(
    tmp_path: Path, packages: Path, order: Callable[[Cluster], list[str]]
) -> None:
    with former_cluster(tmp_path, packages) as cluster:
        check_load(upgrade_under_load(cluster, order(cluster)))


@pytest.mark.exhaustive
def test_sets_of_three_members_are_upgraded(tmp_path: Path, packages: Path) -> None:
    with former_cluster(tmp_path, packages, "--members", "3", "--config-members", "3") as cluster:
        check_load(upgrade_under_load(cluster, cluster.named("configd", "shardd", "router")))


@pytest.mark.exhaustive
@pytest.mark.parametrize("options", [("--auth",), ("--auth", "--tls")], ids=["key file", "key file and TLS"])
def test_a_cluster_with_access_control_is_upgraded(tmp_path: Path, packages: Path, options: tuple[str, ...]) -> None:
    with former_cluster(tmp_path, packages, *options) as cluster:
        check_load(upgrade_under_load(cluster, cluster.named("configd", "shardd", "router")))
