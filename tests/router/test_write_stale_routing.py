"""Writes through a router that has not yet learned of changes made through another one."""

from collections.abc import Iterator
from typing import Any

import pytest
from bson.int64 import Int64
from bson.max_key import MaxKey
from pymongo import ReturnDocument
from pymongo.database import Database

from tests.local_cluster import Client, RunningCluster, client_of

DATABASE = "write_stale_routing"
NAMESPACE = f"{DATABASE}.c"


@pytest.fixture(scope="module")
def routers(cluster: RunningCluster) -> Iterator[tuple[Client, Client]]:
    """Clients of two routers: the one that changes the cluster, and the one whose cache becomes stale."""
    with cluster.direct("router.0") as first, cluster.direct("router.1") as second:
        yield first, second


@pytest.fixture
def databases(routers: tuple[Client, Client]) -> Iterator[tuple[Database[dict[str, Any]], Database[dict[str, Any]]]]:
    """The database through both routers; it is dropped afterwards."""
    first, second = routers
    yield first[DATABASE], second[DATABASE]
    first.drop_database(DATABASE)


@pytest.fixture
def moved(
    cluster: RunningCluster, databases: tuple[Database[dict[str, Any]], Database[dict[str, Any]]]
) -> tuple[Database[dict[str, Any]], str, str]:
    """A collection sharded by ``k``, whose empty upper half was moved without the second router's knowledge.

    Returns:
        The database as the second router sees it, and the shards of the lower and of the upper half.
    """
    first, second = databases
    admin = first.client.admin
    admin.command("shardCollection", NAMESPACE, key={"k": 1})
    admin.command("split", NAMESPACE, middle={"k": 0})
    second.c.insert_many([{"_id": n, "k": n} for n in range(-5, 0)])
    entry = first.client.config.databases.find_one({"_id": DATABASE})
    assert entry is not None
    lower = str(entry["primary"])
    upper = next(shard for shard in cluster.shards if shard != lower)
    admin.command("moveChunk", NAMESPACE, bounds=[{"k": 0}, {"k": MaxKey()}], to=upper)
    return second, lower, upper


def stored(cluster: RunningCluster, shard: str) -> list[int]:
    """The ``_id``s of the documents on a shard's mongod."""
    with cluster.direct(f"{shard}.0.mongod") as client:
        return [document["_id"] for document in client[DATABASE].c.find().sort("_id")]


@pytest.mark.parametrize("ordered", [True, False])
def test_inserts_go_to_the_new_owner(
    cluster: RunningCluster, moved: tuple[Database[dict[str, Any]], str, str], ordered: bool
) -> None:
    database, lower, upper = moved
    database.c.insert_many([{"_id": n, "k": n} for n in (10, -10, 11, -11, 12)], ordered=ordered)
    assert stored(cluster, lower) == [-11, -10, -5, -4, -3, -2, -1]
    assert stored(cluster, upper) == [10, 11, 12]


@pytest.mark.parametrize("ordered", [True, False])
def test_upserts_go_to_the_new_owner(
    cluster: RunningCluster, moved: tuple[Database[dict[str, Any]], str, str], ordered: bool
) -> None:
    database, lower, upper = moved
    statements = [{"q": {"_id": n, "k": n}, "u": {"$inc": {"x": 1}}, "upsert": True} for n in (1, -1, 2, -2)]
    reply = database.command({"update": "c", "updates": statements, "ordered": ordered})
    assert (reply["n"], reply["nModified"]) == (4, 2)
    assert reply["upserted"] == [{"index": 0, "_id": 1}, {"index": 2, "_id": 2}]
    assert stored(cluster, lower) == [-5, -4, -3, -2, -1]
    assert stored(cluster, upper) == [1, 2]


def test_find_and_modify_goes_to_the_new_owner(
    cluster: RunningCluster, moved: tuple[Database[dict[str, Any]], str, str]
) -> None:
    database, _, upper = moved
    found = database.c.find_one_and_update(
        {"_id": 7, "k": 7}, {"$inc": {"x": 1}}, upsert=True, return_document=ReturnDocument.AFTER
    )
    assert found == {"_id": 7, "k": 7, "x": 1}
    assert stored(cluster, upper) == [7]


def test_retryable_write_is_executed_once(
    cluster: RunningCluster, moved: tuple[Database[dict[str, Any]], str, str]
) -> None:
    database, _, upper = moved
    command = {
        "update": "c",
        "updates": [{"q": {"_id": n, "k": n}, "u": {"$inc": {"x": 1}}, "upsert": True} for n in (-1, 1)],
        "txnNumber": Int64(1),
    }
    # A client that does not number writes itself, so that both commands are the same write of the same session.
    with client_of("{}:{}".format(*database.client.address or ()), retryWrites=False) as client:
        first = client[DATABASE].command(command)
        second = client[DATABASE].command(command)
    assert "retriedStmtIds" not in first
    assert second["retriedStmtIds"] == [0, 1]
    assert second["upserted"] == first["upserted"]
    assert sorted(document["x"] for document in database.c.find({"k": {"$in": [-1, 1]}})) == [1, 1]
    assert stored(cluster, upper) == [1]


def test_statements_for_all_shards_reach_the_new_owner(moved: tuple[Database[dict[str, Any]], str, str]) -> None:
    database, _, _ = moved
    database.c.insert_one({"_id": 5, "k": 5})
    assert database.c.update_many({}, {"$set": {"x": 1}}).modified_count == 6
    assert database.c.update_one({"_id": 5}, {"$set": {"x": 2}}).modified_count == 1
    assert database.c.delete_many({}).deleted_count == 6


def test_collection_sharded_by_another_key(
    databases: tuple[Database[dict[str, Any]], Database[dict[str, Any]]],
) -> None:
    first, second = databases
    first.client.admin.command("shardCollection", NAMESPACE, key={"k": 1})
    first.client.admin.command("split", NAMESPACE, middle={"k": 0})
    second.c.insert_many([{"_id": 1, "k": 1}, {"_id": -1, "k": -1}])
    first.c.drop()
    first.client.admin.command("shardCollection", NAMESPACE, key={"x": 1})
    upsert = {"q": {"_id": 1, "x": 1}, "u": {"$set": {"y": 1}}, "upsert": True}
    assert second.command({"update": "c", "updates": [upsert]})["upserted"] == [{"index": 0, "_id": 1}]
    assert list(first.c.find()) == [{"_id": 1, "x": 1, "y": 1}]


def test_collection_that_was_sharded_and_is_no_more(
    databases: tuple[Database[dict[str, Any]], Database[dict[str, Any]]],
) -> None:
    first, second = databases
    first.client.admin.command("shardCollection", NAMESPACE, key={"k": 1})
    second.c.insert_one({"_id": 1, "k": 1})
    first.c.drop()
    second.c.insert_many([{"_id": 2}, {"_id": 3}])
    assert second.c.update_one({}, {"$set": {"x": 1}}).matched_count == 1
    assert first.c.count_documents({}) == 2


def test_collection_that_has_been_sharded(databases: tuple[Database[dict[str, Any]], Database[dict[str, Any]]]) -> None:
    first, second = databases
    second.c.insert_one({"_id": -1, "k": -1})
    first.c.create_index("k")
    first.client.admin.command("shardCollection", NAMESPACE, key={"k": 1})
    second.c.insert_many([{"_id": n, "k": n} for n in (1, -2)])
    assert first.c.count_documents({}) == 3


def test_database_that_was_dropped(databases: tuple[Database[dict[str, Any]], Database[dict[str, Any]]]) -> None:
    first, second = databases
    second.c.insert_one({"_id": 1})
    first.client.drop_database(DATABASE)
    second.c.insert_many([{"_id": 1}, {"_id": 2}])
    assert [document["_id"] for document in first.c.find().sort("_id")] == [1, 2]
