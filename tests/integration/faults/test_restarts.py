"""Every kind of process is killed and restarted during a workload."""

from collections.abc import Iterator

import pytest

from tests.integration.sharded import LOWER, UPPER, Documents, placement, shard_by_range
from tests.integration.waiting import eventually
from tests.integration.workload import running_workload
from tests.local_cluster import RunningCluster, running_cluster


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """This module's own cluster, whose processes may be killed."""
    with running_cluster(tmp_path_factory.mktemp("fragile"), "--routers", "2") as running:
        yield running


@pytest.fixture
def busy(fragile: RunningCluster) -> Iterator[Documents]:
    """A collection on both shards, reached through both routers."""
    with fragile.client(serverSelectionTimeoutMS=60_000) as client:
        yield shard_by_range(client["restarts"])
        eventually_drops(fragile)


def eventually_drops(cluster: RunningCluster) -> None:
    """Drop the database."""
    with cluster.client(serverSelectionTimeoutMS=60_000) as client:
        client.drop_database("restarts")


@pytest.mark.parametrize(
    "name",
    ["router.0", "shard1.0.shardd", "shard1.0.mongod", "shard0.0.shardd", "config.0.configd", "config.0.mongod"],
)
def test_kill_and_restart_during_writes(fragile: RunningCluster, busy: Documents, name: str) -> None:
    with running_workload(busy) as workload:
        workload.wait_for_progress()
        fragile.kill(name)
        fragile.restart(name)
        workload.wait_for_progress(50)
    workload.check(list(busy.find()))
    # The catalog is as it was, and can be changed.
    client = busy.database.client
    assert placement(client, busy.full_name) == [LOWER, UPPER]
    client.admin.command("split", busy.full_name, middle={"key": 250})
    assert len(placement(client, busy.full_name)) == 3


def test_whole_cluster_restarts_with_its_data(fragile: RunningCluster, busy: Documents) -> None:
    with running_workload(busy) as workload:
        workload.wait_for_progress(50)
    before = sorted(document["_id"] for document in busy.find())
    names = [process["name"] for process in fragile.document["processes"]]
    for name in reversed(names):
        fragile.kill(name)
    for name in names:
        # A mongod of a set becomes ready by itself; a daemon when its mongod and the config servers are ready.
        fragile.restart(name)
    eventually(lambda: sorted(document["_id"] for document in busy.find()) == before)
    workload.check(list(busy.find()))
    with running_workload(busy) as workload:
        workload.wait_for_progress(20)
