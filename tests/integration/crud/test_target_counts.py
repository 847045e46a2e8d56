"""Counts of operations by the number of their shards, in the router's ``serverStatus``."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from pymongo import DeleteMany, InsertOne, UpdateOne

from tests.integration.sharded import Documents

Act = Callable[[Documents], object]


def counts(collection: Documents, command: str) -> dict[str, int]:
    """The numbers for one command."""
    status = collection.database.client.admin.command("serverStatus")
    found: dict[str, int] = status["shardingStatistics"]["numHostsTargeted"][command]
    return found


def bulk(*writes: InsertOne[dict[str, Any]] | UpdateOne | DeleteMany) -> Act:
    return lambda collection: collection.bulk_write(list(writes))


def read(documents: Iterable[object]) -> None:
    """Read a cursor to its end."""
    assert list(documents) is not None


@pytest.mark.parametrize(
    ("act", "command", "part"),
    [
        (lambda coll: coll.find_one({"key": 1}), "find", "oneShard"),
        (lambda coll: read(coll.find(batch_size=2)), "find", "allShards"),
        (lambda coll: read(coll.aggregate([{"$match": {"key": 900}}])), "aggregate", "oneShard"),
        (lambda coll: read(coll.aggregate([{"$group": {"_id": "$a"}}])), "aggregate", "allShards"),
        (bulk(InsertOne({"key": 2})), "insert", "oneShard"),
        (bulk(InsertOne({"key": 2}), InsertOne({"key": 902})), "insert", "allShards"),
        (bulk(UpdateOne({"key": 900}, {"$set": {"a": 1}})), "update", "oneShard"),
        (lambda coll: coll.update_many({}, {"$set": {"a": 1}}), "update", "allShards"),
        (bulk(DeleteMany({"a": 7})), "delete", "allShards"),
        (lambda coll: coll.database["unsharded"].insert_one({}), "insert", "unsharded"),
        (lambda coll: coll.database["unsharded"].find_one(), "find", "unsharded"),
        (lambda coll: read(coll.database.aggregate([{"$documents": [{}]}])), "aggregate", "unsharded"),
    ],
)
def test_operations_are_counted_by_their_targets(placed: Documents, act: Act, command: str, part: str) -> None:
    placed.insert_many({"key": key} for key in (1, 2, 3, 900, 901))
    before = counts(placed, command)
    act(placed)
    after = counts(placed, command)
    assert after == {**before, part: before[part] + 1}


def test_reads_of_a_view_are_counted_by_the_collection_beneath(placed: Documents) -> None:
    placed.database.create_collection("view", viewOn=placed.name, pipeline=[{"$match": {"key": {"$gte": 0}}}])
    before = counts(placed, "aggregate")
    read(placed.database["view"].aggregate([]))
    assert counts(placed, "aggregate") == {**before, "allShards": before["allShards"] + 1}


def test_what_fails_is_not_counted(placed: Documents) -> None:
    before = counts(placed, "find")
    with pytest.raises(Exception, match="unknown operator"):
        placed.find_one({"key": {"$unknown": 1}})
    assert counts(placed, "find") == before


def test_operations_that_wait_for_a_routing_table_are_counted(placed: Documents) -> None:
    admin = placed.database.client.admin

    def waited() -> dict[str, int]:
        status = admin.command("serverStatus")
        found: dict[str, int] = status["shardingStatistics"]["catalogCache"]["operationsBlockedByRefresh"]
        return found

    before = waited()
    for act in (
        lambda: placed.find_one({"key": 1}),
        lambda: placed.insert_one({"key": 1}),
        lambda: placed.count_documents({}),
    ):
        admin.command("flushRouterConfig")
        act()
        act()
    added = {name: count - before[name] for name, count in waited().items()}
    assert added.pop("countAllOperations") == sum(added.values()) == 3
    assert added == {"countInserts": 1, "countQueries": 1, "countUpdates": 0, "countDeletes": 0, "countCommands": 1}


def test_updates_by_an_id_that_all_shards_get_are_counted(placed: Documents) -> None:
    def count() -> int:
        status = placed.database.client.admin.command("serverStatus")
        found: int = status["metrics"]["query"]["updateOneOpStyleBroadcastWithExactIDCount"]
        return found

    before = count()
    placed.update_one({"_id": 1}, {"$set": {"a": 1}})
    placed.bulk_write([UpdateOne({"_id": 2}, {"$set": {"a": 1}}), UpdateOne({"_id": 3, "key": 1}, {"$set": {"a": 1}})])
    placed.update_many({"_id": 1}, {"$set": {"a": 2}})
    placed.delete_one({"_id": 1})
    assert count() == before + 2
