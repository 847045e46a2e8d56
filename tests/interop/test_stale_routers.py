"""Routers whose caches are outdated because of another router's commands to the genuine servers."""

from collections.abc import Callable

import pytest
from pymongo.database import Database

from tests.genuine_cluster import SHARDS
from tests.interop.sharded import Document, Documents, counter, split_parts
from tests.local_cluster import Client


def _refreshes(client: Client) -> int:
    return counter(client, "countFullRefreshesStarted") + counter(client, "countIncrementalRefreshesStarted")


def _update(collection: Documents) -> object:
    return collection.update_one({"key": 30}, {"$set": {"a": 1}}).modified_count


def _insert(collection: Documents) -> object:
    collection.insert_one({"key": 25.5})
    return collection.count_documents({"key": 25.5})


def _modify(collection: Documents) -> object:
    return collection.find_one_and_update({"key": 30}, {"$set": {"a": 1}}) is not None


OPERATIONS: dict[str, tuple[Callable[[Documents], object], object]] = {
    "find targeted": (lambda collection: [each["key"] for each in collection.find({"key": 30})], [30]),
    "find sorted": (lambda collection: [each["key"] for each in collection.find().sort("key", 1)], list(range(100))),
    "count": (lambda collection: collection.count_documents({}), 100),
    "distinct": (lambda collection: len(collection.distinct("key")), 100),
    "aggregate": (lambda collection: len(list(collection.aggregate([{"$match": {"key": 30}}]))), 1),
    "insert": (_insert, 1),
    "update": (_update, 1),
    "update all": (lambda collection: collection.update_many({}, {"$set": {"b": 1}}).matched_count, 100),
    "delete": (lambda collection: collection.delete_one({"key": 30}).deleted_count, 1),
    "delete all": (lambda collection: collection.delete_many({}).deleted_count, 100),
    "findAndModify": (_modify, True),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_chunk_moved_by_another_router(
    client: Client, other_client: Client, database: Database[Document], name: str
) -> None:
    operation, expected = OPERATIONS[name]
    namespace = split_parts(database).full_name
    stale = other_client[database.name].ranged
    assert stale.count_documents({}) == 100  # Now the other router knows the placement,
    client.admin.command("moveChunk", namespace, find={"key": 30}, to=SHARDS[1])  # which becomes wrong.
    refreshes = _refreshes(other_client)
    assert operation(stale) == expected
    # A write of many documents goes to all shards, whatever they own, and so meets no stale version.
    assert _refreshes(other_client) == refreshes + (not name.endswith("all"))
    assert stale.count_documents({}) == client[database.name].ranged.count_documents({})
    assert _refreshes(other_client) == refreshes + 1, "once brought up to date, it stays so"


def test_unordered_batch_over_stale_chunks(client: Client, other_client: Client, database: Database[Document]) -> None:
    namespace = split_parts(database).full_name
    stale = other_client[database.name].ranged
    assert stale.count_documents({}) == 100
    for point in (10, 20, 40):
        client.admin.command("split", namespace, middle={"key": point})
    client.admin.command("moveChunk", namespace, find={"key": 0}, to=SHARDS[1])
    client.admin.command("moveChunk", namespace, find={"key": 30}, to=SHARDS[1])
    keys = [each + 0.5 for each in range(100)]
    inserted = stale.insert_many([{"key": key} for key in keys], ordered=False).inserted_ids
    assert len(inserted) == 100
    assert client[database.name].ranged.count_documents({}) == 200
    assert [each["key"] for each in stale.find({"key": {"$in": keys}}).sort("key", 1)] == keys


def test_cursor_opened_before_a_move_continues(
    client: Client, other_client: Client, database: Database[Document]
) -> None:
    namespace = split_parts(database).full_name
    cursor = other_client[database.name].ranged.find().sort("key", 1).batch_size(10)
    first = next(cursor)["key"]
    client.admin.command("moveChunk", namespace, find={"key": 30}, to=SHARDS[1])
    assert [first, *(each["key"] for each in cursor)] == list(range(100))


def test_collection_sharded_by_another_router(
    client: Client, other_client: Client, database: Database[Document]
) -> None:
    stale = other_client[database.name].ranged
    assert stale.count_documents({}) == 0
    split_parts(database)
    assert stale.count_documents({}) == 100
    stale.insert_many([{"key": -1}, {"key": 1000}])
    assert client[database.name].command("count", "ranged", query={"key": {"$in": [-1, 1000]}})[
        "shards"
    ] == dict.fromkeys(SHARDS, 1)


def test_collection_recreated_by_another_router(
    client: Client, other_client: Client, database: Database[Document]
) -> None:
    split_parts(database)
    stale = other_client[database.name].ranged
    assert stale.count_documents({}) == 100
    database.drop_collection("ranged")
    assert stale.count_documents({}) == 0
    client.admin.command("shardCollection", f"{database.name}.ranged", key={"other": "hashed"})
    stale.insert_many([{"other": number} for number in range(10)])
    assert client[database.name].ranged.count_documents({}) == 10


def test_database_recreated_by_another_router(
    client: Client, other_client: Client, database: Database[Document]
) -> None:
    stale = other_client[database.name].plain
    stale.insert_one({"_id": 1})
    client.drop_database(database.name)
    client.admin.command("enableSharding", database.name, primaryShard=SHARDS[1])
    assert stale.find_one() is None
    stale.insert_one({"_id": 2})
    assert client[database.name].plain.find_one() == {"_id": 2}
