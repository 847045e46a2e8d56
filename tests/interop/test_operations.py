"""Reads and writes on a genuine cluster through our router."""

from uuid import uuid4

import pytest
from bson.binary import Binary
from bson.int64 import Int64
from pymongo import DeleteOne, InsertOne, ReturnDocument, UpdateMany, UpdateOne, WriteConcern
from pymongo.database import Database
from pymongo.errors import BulkWriteError, OperationFailure

from shardwright.wire.error_codes import ErrorCode
from tests.genuine_cluster import GenuineCluster
from tests.interop.sharded import SPLIT_AT, Document, Documents, split_parts
from tests.interop.tcp_connection import TcpConnection


@pytest.fixture
def collection(database: Database[Document]) -> Documents:
    """A hundred documents on two shards; the first still has orphans of the second's range."""
    return split_parts(database)


def test_find_targeted_and_scattered(collection: Documents) -> None:
    assert collection.find_one({"key": 3}) == {"_id": 3, "key": 3, "even": False}
    assert collection.find_one({"key": 97}) == {"_id": 97, "key": 97, "even": False}
    assert sorted(each["_id"] for each in collection.find({"even": True})) == list(range(0, 100, 2))
    assert [each["key"] for each in collection.find({"key": {"$in": [1, 99]}}).sort("key", -1)] == [99, 1]


def test_find_sorted_in_batches(collection: Documents) -> None:
    cursor = collection.find({}, {"_id": 0, "key": 1}).sort([("even", 1), ("key", -1)]).batch_size(7)
    odd, even = list(range(99, 0, -2)), list(range(98, -1, -2))
    assert [each["key"] for each in cursor] == odd + even
    assert [each["key"] for each in collection.find().sort("key", 1).skip(45).limit(10)] == list(range(45, 55))


def test_cursor_killed(collection: Documents) -> None:
    cursor = collection.find().batch_size(5)
    next(cursor)
    identifier = cursor.cursor_id
    cursor.close()
    with pytest.raises(OperationFailure) as failure:
        collection.database.command("getMore", identifier, collection=collection.name)
    assert failure.value.code == ErrorCode.CursorNotFound


def test_count_and_distinct(collection: Documents) -> None:
    assert collection.count_documents({"key": {"$gte": 40, "$lt": 60}}) == 20
    # count with a filter excludes orphans; without one MongoDB counts them.
    reply = collection.database.command("count", collection.name, query={"key": {"$gte": 40}})
    assert reply["n"] == 60
    assert collection.distinct("even") == [False, True]
    assert len(collection.distinct("key")) == 100


def test_aggregate_on_one_shard(collection: Documents) -> None:
    pipeline: list[Document] = [
        {"$match": {"key": SPLIT_AT}},
        {"$project": {"_id": 0, "double": {"$multiply": ["$key", 2]}}},
    ]
    assert list(collection.aggregate(pipeline)) == [{"double": 2 * SPLIT_AT}]


def test_write_and_read_back(collection: Documents) -> None:
    collection.insert_many([{"key": -1}, {"key": 1000}])
    assert collection.update_one({"key": 1000}, {"$set": {"a": 1}}).modified_count == 1
    assert collection.update_many({}, {"$set": {"b": 1}}).modified_count == 102
    upserted = collection.update_one({"key": 2000}, {"$set": {"a": 1}}, upsert=True)
    assert upserted.upserted_id is not None
    assert collection.replace_one({"_id": 5, "key": 5}, {"key": 5, "c": 1}).modified_count == 1
    assert collection.find_one({"key": 5}) == {"_id": 5, "key": 5, "c": 1}
    assert collection.delete_one({"key": 7}).deleted_count == 1
    assert collection.delete_many({"key": {"$gte": 40, "$lt": 60}}).deleted_count == 20
    assert collection.count_documents({}) == 100 + 3 - 1 - 20


def test_find_and_modify(collection: Documents) -> None:
    after = collection.find_one_and_update({"key": 60}, {"$inc": {"n": 2}}, return_document=ReturnDocument.AFTER)
    assert after == {"_id": 60, "key": 60, "even": True, "n": 2}
    assert collection.find_one_and_delete({"key": 60}) == after
    assert collection.find_one({"key": 60}) is None
    with pytest.raises(OperationFailure) as failure:
        collection.find_one_and_update({"even": True}, {"$inc": {"n": 2}})
    assert failure.value.code == ErrorCode.ShardKeyNotFound


@pytest.mark.parametrize("ordered", [True, False])
def test_bulk_with_errors(collection: Documents, ordered: bool) -> None:
    requests: list[InsertOne[Document] | UpdateOne | UpdateMany | DeleteOne] = [
        InsertOne[Document]({"_id": 200, "key": 200}),
        UpdateOne({"key": 1}, {"$set": {"a": 1}}),
        InsertOne[Document]({"_id": 99, "key": 99}),  # There already, on the second shard.
        InsertOne[Document]({"_id": 1, "key": 1}),  # And on the first.
        DeleteOne({"key": 98}),
        UpdateMany({"even": True}, {"$set": {"b": 1}}),
    ]
    with pytest.raises(BulkWriteError) as failure:
        collection.bulk_write(requests, ordered=ordered)
    details = failure.value.details
    assert [error["index"] for error in details["writeErrors"]] == ([2] if ordered else [2, 3])
    assert {error["code"] for error in details["writeErrors"]} == {ErrorCode.DuplicateKey}
    assert details["nInserted"] == 1
    assert (details["nModified"], details["nRemoved"]) == ((1, 0) if ordered else (51, 1))


def test_retryable_write_is_executed_once(collection: Documents, genuine: GenuineCluster) -> None:
    command = {
        "insert": collection.name,
        "documents": [{"_id": key, "key": key} for key in (-5, 500)],
        "lsid": {"id": Binary.from_uuid(uuid4())},
        "txnNumber": Int64(1),
    }
    with TcpConnection(genuine.routers[0]) as connection:
        first, again = (connection.command(command, db=collection.database.name) for _ in range(2))
    assert first["n"] == again["n"] == 2
    assert again["retriedStmtIds"] == [0, 1]
    assert collection.count_documents({"key": {"$in": [-5, 500]}}) == 2


def test_write_concern_and_unacknowledged_writes(collection: Documents) -> None:
    collection.with_options(write_concern=WriteConcern(w="majority")).insert_one({"key": 300})
    collection.with_options(write_concern=WriteConcern(w=0)).insert_one({"key": 301})
    assert collection.find_one({"key": 300}) is not None
    insert = {"insert": collection.name, "documents": [{"key": 302}], "writeConcern": {"w": "no tag"}}
    reply = collection.database.command(insert)
    assert reply["n"] == 1
    assert reply["writeConcernError"]["code"] == ErrorCode.UnknownReplWriteConcern


def test_unsharded_collection(database: Database[Document]) -> None:
    database.plain.insert_many([{"_id": number, "n": number % 3} for number in range(30)])
    assert database.plain.count_documents({"n": 1}) == 10
    groups = database.plain.aggregate([{"$group": {"_id": "$n", "count": {"$sum": 1}}}, {"$sort": {"_id": 1}}])
    assert list(groups) == [{"_id": n, "count": 10} for n in range(3)]
    database.create_collection("view", viewOn="plain", pipeline=[{"$match": {"n": 2}}])
    assert database.view.count_documents({}) == 10


def test_explain_names_both_shards(collection: Documents) -> None:
    plan = collection.database.command("explain", {"find": collection.name, "filter": {}}, verbosity="queryPlanner")
    assert plan["queryPlanner"]["winningPlan"]["stage"] == "SHARD_MERGE"
