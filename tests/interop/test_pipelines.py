"""Pipelines that name other collections, and views, on a genuine cluster through our router.

Genuine shards refuse unknown fields, and themselves route reads of other collections.
"""

import pytest
from pymongo.database import Database
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from tests.genuine_cluster import SHARDS, GenuineCluster
from tests.interop.sharded import Document, split_parts
from tests.interop.tcp_connection import TcpConnection
from tests.local_cluster import Client

DIVIDED_BY_ZERO = 4848401
JOIN: Document = {"$lookup": {"from": "other", "localField": "_id", "foreignField": "_id", "as": "x"}}


@pytest.fixture
def plain(database: Database[Document]) -> Database[Document]:
    """Two unsharded collections."""
    database.plain.insert_many([{"_id": n} for n in range(5)])
    database.other.insert_many([{"_id": n} for n in range(3, 8)])
    return database


def test_joining_and_writing(plain: Database[Document]) -> None:
    joined = [each["_id"] for each in plain.plain.aggregate([JOIN, {"$match": {"x": {"$ne": []}}}])]
    assert joined == [3, 4]
    assert plain.command("explain", {"aggregate": "plain", "pipeline": [JOIN], "cursor": {}})["ok"]
    plain.plain.aggregate([{"$merge": "other"}])
    assert plain.other.count_documents({}) == 8
    plain.plain.aggregate([{"$out": "other"}])
    assert plain.other.count_documents({}) == 5


def test_merging_into_a_collection_that_another_router_sharded(plain: Database[Document], other_client: Client) -> None:
    plain.plain.aggregate([{"$merge": "other"}])
    namespace = f"{plain.name}.other"
    other_client.admin.command("shardCollection", namespace, key={"_id": 1})
    other_client.admin.command("moveChunk", namespace, find={"_id": 0}, to=SHARDS[1])
    plain.plain.insert_one({"_id": 100})
    with pytest.raises(OperationFailure) as failure:
        plain.plain.aggregate([{"$match": {}}, {"$out": "other"}])
    assert failure.value.code == 28769
    assert other_client[plain.name].other.count_documents({}) == 8
    plain.plain.aggregate([{"$match": {}}, {"$merge": "other"}])
    assert other_client[plain.name].other.count_documents({}) == 9


def test_genuine_shards_merge(database: Database[Document], other_client: Client) -> None:
    halves = split_parts(database)
    database.other.insert_many([{"even": bool(n), "word": word} for n, word in enumerate(("odd", "even"))])
    join = {"$lookup": {"from": "other", "localField": "_id", "foreignField": "even", "as": "words"}}
    counted: list[Document] = [{"$group": {"_id": "$even", "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}]
    expected = [{"_id": False, "n": 50}, {"_id": True, "n": 50}]
    for client in (database.client, other_client):
        with client.start_session() as session:
            found = client[database.name][halves.name]
            assert list(found.aggregate(counted, session=session, batchSize=1)) == expected
    joined = halves.aggregate([*counted, join, {"$unwind": "$words"}], batchSize=1)
    assert [(each["_id"], each["words"]["word"]) for each in joined] == [(False, "odd"), (True, "even")]
    window = {"sortBy": {"key": 1}, "output": {"rank": {"$rank": {}}}}
    ranked = halves.aggregate([{"$setWindowFields": window}, {"$project": {"_id": 0, "rank": 1}}, {"$skip": 97}])
    assert [each["rank"] for each in ranked] == [98, 99, 100]
    halves.aggregate([*counted, {"$out": "counted"}])
    assert list(database.counted.find(sort=[("_id", 1)])) == expected
    with pytest.raises(OperationFailure) as failure:
        halves.aggregate([{"$group": {"_id": {"$divide": ["$key", 0]}}}])
    assert failure.value.code == DIVIDED_BY_ZERO


def test_commands_in_no_session_are_merged(database: Database[Document], genuine: GenuineCluster) -> None:
    halves = split_parts(database)
    with TcpConnection(genuine.routers[0]) as connection:
        grouping = {"aggregate": halves.name, "pipeline": [{"$group": {"_id": "$even"}}], "cursor": {"batchSize": 1}}
        reply = connection.command(grouping, db=database.name)
        more = connection.command({"getMore": reply["cursor"]["id"], "collection": halves.name}, db=database.name)
    assert len(reply["cursor"]["firstBatch"]) == len(more["cursor"]["nextBatch"]) == 1


def test_a_view_on_an_unsharded_collection(plain: Database[Document]) -> None:
    plain.create_collection("view", viewOn="plain", pipeline=[{"$match": {"_id": {"$gte": 2}}}])
    assert [each["_id"] for each in plain["view"].find().sort("_id", 1).batch_size(2)] == [2, 3, 4]
    assert plain.command("count", "view")["n"] == 3
    assert sorted(plain["view"].distinct("_id")) == [2, 3, 4]
    assert [each["_id"] for each in plain["view"].aggregate([{"$match": {"_id": 3}}])] == [3]
    assert "queryPlanner" in plain.command("explain", {"find": "view"})
    with pytest.raises(OperationFailure) as failure:
        plain.command("find", "view", collation={"locale": "fr"})
    assert failure.value.code == ErrorCode.OptionNotSupportedOnView


def test_a_view_on_a_sharded_collection(database: Database[Document]) -> None:
    split_parts(database)
    database.create_collection("view", viewOn="ranged", pipeline=[{"$match": {"key": {"$gte": 40}}}])
    keys = [each["key"] for each in database["view"].find({"key": {"$lt": 60}}).sort("key", 1).batch_size(7)]
    assert keys == list(range(40, 60))
    assert database["view"].count_documents({}) == 60
