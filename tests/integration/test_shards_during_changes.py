"""A shard that is added, or removed, in the middle of a change of a collection."""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

import pytest
from bson.max_key import MaxKey

from tests.fail_points import FailPoint, fail_point
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster, running_cluster
from tests.shardd.mini_cluster import Set, replica_set

SOON: Final = {"socketTimeoutMS": 60_000}
UPPER_HALF: Final = [{"k": 0}, {"k": MaxKey()}]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), "--orphan-cleanup-delay", "0") as running:
        yield running


@pytest.fixture(scope="module")
def third(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Set]:
    """A set that is no shard, and that none was."""
    with replica_set(tmp_path_factory.mktemp("third")) as running:
        yield running


@pytest.fixture
def client(cluster: RunningCluster) -> Iterator[Client]:
    """A client of the router, where ``db.c`` has a chunk on either side of 0."""
    with cluster.direct("router.0", **SOON) as client:
        client.admin.command("enableSharding", "db", primaryShard="shard0")
        client.admin.command("shardCollection", "db.c", key={"k": 1})
        client.admin.command("split", "db.c", middle={"k": 0})
        yield client
        client.drop_database("db")


@contextmanager
def held(cluster: RunningCluster, operation: str, place: str) -> Iterator[FailPoint]:
    """Hold up changes of a kind on the primary shard of ``db``."""
    with (
        cluster.direct("shard0.0.shardd") as coordinator,
        fail_point(coordinator, "hangInDDLCoordinator", operationType=operation, at=place) as point,
    ):
        yield point


def remove(client: Client) -> None:
    """Remove the third shard, which has nothing."""
    eventually(lambda: client.admin.command("removeShard", "third")["state"] == "completed", what="it is removed")


def test_a_change_shows_a_new_shard_with_its_hosts(cluster: RunningCluster, third: Set, client: Client) -> None:
    with ThreadPoolExecutor() as pool:
        with held(cluster, "collMod_V2", "BlockShards") as point:
            changing = pool.submit(client.db.command, "collMod", "c", validationLevel="moderate")
            point.wait_entered()
            client.admin.command("addShard", third.connection_string, name="third")
            client.admin.command("moveChunk", "db.c", bounds=UPPER_HALF, to="third")
        assert third.connection_string in changing.result(60)["raw"]
    created = client.db.command("createIndexes", "c", indexes=[{"key": {"late": 1}, "name": "late_1"}])
    assert third.connection_string in created["raw"]
    client.drop_database("db")
    remove(client)


def test_a_rename_that_a_lost_shard_has_not_finished_is_over_when_it_is_added_again(
    cluster: RunningCluster, third: Set, client: Client
) -> None:
    client.admin.command("addShard", third.connection_string, name="third")
    (member,) = third.members
    with ThreadPoolExecutor() as pool:
        with held(cluster, "renameCollection", "renameMetadata") as point:
            renaming = pool.submit(client.admin.command, "renameCollection", "db.c", to="db.d")
            point.wait_entered()
            client.admin.command("removeShard", "third")
            assert client.admin.command("removeShard", "third")["state"] == "ongoing", "it waits for the rename to end"
            member.daemon.stop(signal.SIGKILL)
            remove(client)
        renaming.result(60)
    with member.mongod_client() as mongod:
        assert mongod.config.localRenameParticipants.count_documents({}) == 1
        member.restart(member.daemon)
        client.admin.command("addShard", third.connection_string, name="third")
        assert mongod.config.localRenameParticipants.count_documents({}) == 0
    client.admin.command("moveChunk", "db.d", bounds=UPPER_HALF, to="third")
    client.db.d.insert_one({"k": 1})
    client.drop_database("db")
    remove(client)
