"""Consoles of an open and of a closed cluster."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pytest

from tests.console.browser import Browser, RunningConsole, running_console
from tests.local_cluster import RunningCluster, running_cluster

PASSWORD: Final = "correct horse"
NAMESPACE: Final = "shop.orders"


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
