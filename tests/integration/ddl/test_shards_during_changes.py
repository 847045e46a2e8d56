"""A shard that is added, or removed, in the middle of a change of a collection, or unknown to another router."""

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
    options = ("--orphan-cleanup-delay", "0", "--routers", "2")
    with running_cluster(tmp_path_factory.mktemp("cluster"), *options) as running:
        yield running


@pytest.fixture(scope="module")
def third(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Set]:
    """A replica set that is not a shard and never was one."""
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


@pytest.mark.parametrize("others", [0, 1])
def test_a_cursor_survives_the_removal_of_its_shard(
    cluster: RunningCluster, third: Set, client: Client, others: int
) -> None:
    """Through a router that has heard of it; from that shard alone, or merged."""
    client.admin.command("addShard", third.connection_string, name="third")
    client.admin.command("moveChunk", "db.c", bounds=UPPER_HALF, to="third")
    client.db.c.insert_many({"_id": n, "k": n} for n in range(-5, 10))
    with client.db.c.find({"k": {"$gte": -5 * others}}, batch_size=2) as cursor:
        first = next(cursor)
        client.admin.command("moveChunk", "db.c", bounds=UPPER_HALF, to="shard0")
        remove(client)
        assert "third" not in [each["_id"] for each in client.admin.command("listShards")["shards"]]
        assert sorted(each["k"] for each in [first, *cursor]) == list(range(-5 * others, 10))
    client.drop_database("db")
    with third.members[0].mongod_client() as mongod:
        mongod.drop_database("db")


def test_a_router_that_was_told_nothing_follows_what_a_removed_shard_had(
    cluster: RunningCluster, third: Set, client: Client
) -> None:
    client.admin.command("addShard", third.connection_string, name="third")
    names = [f"gone{n}" for n in range(5)]
    with cluster.direct("router.1", **SOON) as other:
        for name in names:
            client.admin.command("enableSharding", name, primaryShard="third")
            client.admin.command("shardCollection", f"{name}.s", key={"k": 1})
            other[name].u.insert_one({"_id": 1})
            other[name].s.insert_one({"_id": 1, "k": 1})
            client.admin.command("moveChunk", f"{name}.s", find={"k": 1}, to="shard0")
            client.admin.command("movePrimary", name, to="shard0")
        remove(client)
        assert set(names) <= set(other.list_database_names()), "which reads the list of shards again"
        unsharded, sharded, aggregated, created, changed = (other[name] for name in names)
        unsharded.u.insert_one({"_id": 2})
        assert unsharded.u.count_documents({}) == 2
        assert sharded.s.find_one({"k": 1}) == {"_id": 1, "k": 1}
        assert sharded.s.update_one({"k": 1}, {"$set": {"n": 1}}).modified_count == 1
        assert list(aggregated.u.aggregate([{"$group": {"_id": 1, "n": {"$sum": 1}}}])) == [{"_id": 1, "n": 1}]
        created.create_collection("v")
        with other.start_session() as session, session.start_transaction():
            changed.u.insert_one({"_id": 2}, session=session)
            changed.s.update_many({}, {"$set": {"n": 1}}, session=session)
    for name in names:
        client.drop_database(name)
