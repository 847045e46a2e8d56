"""Consoles of an open and of a closed cluster."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from pymongo.errors import PyMongoError

from tests.console.browser import Browser, RunningConsole, running_console
from tests.console.chromium import Chromium, running_chromium
from tests.local_cluster import RunningCluster, running_cluster

PASSWORD: Final = "correct horse"
NAMESPACE: Final = "shop.orders"


class Load:
    """Clients that read, write and move a chunk to and fro until the block ends."""

    def __init__(self, cluster: RunningCluster) -> None:
        self._cluster = cluster
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._operate), threading.Thread(target=self._move)]
        self.operations = self.moves = 0

    def __enter__(self) -> "Load":
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for each in self._threads:
            each.join()

    def _operate(self) -> None:
        with self._cluster.client() as client:
            while not self._ended.wait(0.02):
                number = self.operations % 400
                client.busy.orders.find_one({"customer": number})
                client.busy.orders.update_one({"customer": number}, {"$inc": {"total": 1}})
                if not number % 40:
                    list(client.busy.orders.find({"total": {"$gt": 700}}))
                self.operations += 1

    def _move(self) -> None:
        shards = sorted(self._cluster.shards)
        with self._cluster.client() as client:
            while not self._ended.wait(1.0):
                to = shards[self.moves % 2]
                try:
                    client.admin.command("moveChunk", "busy.orders", find={"customer": 350}, to=to)
                except PyMongoError:
                    continue  # another test moves, or the range is still being cleaned up
                self.moves += 1


def fill(cluster: RunningCluster) -> None:
    """Two sharded collections with documents on both shards."""
    with cluster.client() as client:
        admin = client.admin
        first, second = sorted(cluster.shards)
        client.drop_database("shop")
        admin.command("enableSharding", "shop", primaryShard=first)
        admin.command("shardCollection", NAMESPACE, key={"customer": 1})
        admin.command("shardCollection", "shop.events", key={"device": "hashed"})
        for middle in (100, 200, 300):
            admin.command("split", NAMESPACE, middle={"customer": middle})
        admin.command("moveChunk", NAMESPACE, find={"customer": 150}, to=second)
        client.shop.orders.insert_many([{"customer": number, "total": number * 2} for number in range(400)])
        client.shop.events.insert_many([{"device": number} for number in range(100)])


@pytest.fixture(scope="package")
def open_console(cluster: RunningCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningConsole]:
    fill(cluster)
    log = tmp_path_factory.mktemp("console") / "console.log"
    with running_console(cluster.directory, log) as console:
        yield console
    with cluster.client() as client:
        client.drop_database("shop")


@pytest.fixture(scope="package")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with running_chromium(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture(scope="package")
def heated(open_console: RunningConsole, cluster: RunningCluster) -> RunningConsole:
    """The console with an hour of numbers: one range that is read, and a place of writing that moves on."""
    now = datetime.now(UTC)
    with cluster.direct("config.0.mongod") as config:
        config.config.keyStatistics.insert_many(
            {
                "at": now - timedelta(minutes=minute),
                "seconds": 60,
                "shard": "shard0",
                "member": "",
                "collections": [{"ns": NAMESPACE, "ranges": [part(low, minute) for low in range(0, 400, 10)]}],
            }
            for minute in range(1, 60)
        )
    return open_console


def part(low: int, minute: int) -> dict[str, Any]:
    reads = 100 + (20_000 if 120 <= low < 160 and 15 < minute < 40 else 0) + (3_000 if low >= 300 else 0)
    writes = 8_000 if low // 10 == (60 - minute) * 2 // 3 else 20
    return {
        **{"min": {"customer": low}, "max": {"customer": low + 10}},
        **{
            "reads": reads + writes // 4,
            "writes": writes,
            "documents": reads + writes,
            "bytes": 300 * (reads + writes),
        },
    }


@pytest.fixture(scope="module")
def load(cluster: RunningCluster) -> Iterator[Load]:
    """Yield load and moves, in a database whose operations no other test counts."""
    with cluster.client() as client:
        client.admin.command("enableSharding", "busy", primaryShard=min(cluster.shards))
        client.admin.command("shardCollection", "busy.orders", key={"customer": 1})
        client.admin.command("split", "busy.orders", middle={"customer": 200})
        client.busy.orders.insert_many([{"customer": number, "total": number * 2} for number in range(400)])
        with Load(cluster) as load:
            yield load
        assert load.operations
        assert load.moves
        client.drop_database("busy")


@pytest.fixture
def browser(open_console: RunningConsole) -> Browser:
    return open_console.browser()


@dataclass(frozen=True)
class Closed:
    """A cluster with access control, and its console."""

    cluster: RunningCluster
    console: RunningConsole

    def browser(self, user: str) -> Browser:
        found = self.console.browser()
        assert found.log_in(user, PASSWORD).status == 303
        return found


@pytest.fixture(scope="package")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Closed]:
    directory = tmp_path_factory.mktemp("closed")
    with running_cluster(directory / "cluster", "--auth", "--routers", "2", "--orphan-cleanup-delay", "0") as cluster:
        fill(cluster)
        with cluster.client() as client:
            for user, roles in (
                ("manager", ["clusterAdmin", "readAnyDatabase"]),
                ("monitor", ["clusterMonitor"]),
                ("reader", [{"role": "read", "db": "shop"}]),
            ):
                client.admin.command("createUser", user, pwd=PASSWORD, roles=roles)
        with running_console(cluster.directory, directory / "console.log") as console:
            yield Closed(cluster, console)
