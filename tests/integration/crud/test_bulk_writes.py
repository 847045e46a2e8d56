"""Batches that are divided between shards, with replies as from a single server."""

import pytest
from bson.int64 import Int64
from pymongo import DeleteMany, DeleteOne, InsertOne, ReplaceOne, UpdateMany, UpdateOne, WriteConcern
from pymongo.errors import BulkWriteError

from tests.integration.sharded import Document, Documents
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster


def indexes(error: BulkWriteError) -> list[int]:
    """The indexes of the failed operations."""
    return [item["index"] for item in error.details["writeErrors"]]


def keys(collection: Documents) -> list[int]:
    """All keys in order."""
    return [document["key"] for document in collection.find().sort("key", 1)]


@pytest.mark.parametrize("ordered", [True, False])
def test_all_kinds_of_writes_in_one_batch(collection: Documents, ordered: bool) -> None:
    collection.insert_many({"_id": n, "key": n} for n in range(0, 1000, 100))
    result = collection.bulk_write(
        [
            InsertOne({"_id": 1, "key": 1}),
            InsertOne({"_id": 999, "key": 999}),
            UpdateOne({"_id": 100, "key": 100}, {"$set": {"a": 1}}),
            UpdateMany({"key": {"$in": [200, 300, 800]}}, {"$set": {"a": 2}}),
            ReplaceOne({"_id": 900, "key": 900}, {"_id": 900, "key": 900, "a": 3}),
            UpdateOne({"_id": 7000, "key": 7000}, {"$set": {"a": 4}}, upsert=True),
            DeleteOne({"_id": 400, "key": 400}),
            DeleteMany({"key": {"$in": [500, 600]}}),
        ],
        ordered=ordered,
    )
    assert (result.inserted_count, result.matched_count, result.modified_count) == (2, 5, 5)
    assert (result.deleted_count, result.upserted_ids) == (3, {5: 7000})
    assert keys(collection) == [0, 1, 100, 200, 300, 700, 800, 900, 999, 7000]


def test_ordered_batch_stops_at_the_first_error(ranged: Documents) -> None:
    ranged.insert_one({"_id": "taken", "key": 800})
    batch: list[Document] = [
        {"key": 1},
        {"key": 501},
        {"key": 2},
        {"_id": "taken", "key": 800},
        {"key": 3},
        {"key": 502},
    ]
    with pytest.raises(BulkWriteError) as caught:
        ranged.insert_many(batch)
    assert indexes(caught.value) == [3]
    assert caught.value.details["nInserted"] == 3
    assert caught.value.details["writeErrors"][0]["code"] == 11000
    assert keys(ranged) == [1, 2, 501, 800]


def test_unordered_batch_continues_after_errors(ranged: Documents) -> None:
    ranged.insert_many([{"_id": "low", "key": 10}, {"_id": "high", "key": 800}])
    batch: list[Document] = [{"_id": n, "key": n} for n in range(20, 30)]
    batch.insert(2, {"_id": "high", "key": 800})
    batch.insert(5, {"_id": "low", "key": 10})
    batch.append({"_id": "high", "key": 801})
    batch.append({"_id": "last", "key": 900})
    with pytest.raises(BulkWriteError) as caught:
        ranged.insert_many(batch, ordered=False)
    assert indexes(caught.value) == [2, 5, 12]
    assert caught.value.details["nInserted"] == 11
    assert len(keys(ranged)) == 13


def test_upserts_are_reported_by_their_position_in_the_batch(ranged: Documents) -> None:
    ranged.insert_one({"_id": 600, "key": 600})
    updates = [UpdateOne({"_id": n, "key": n}, {"$set": {"a": 1}}, upsert=True) for n in (1, 600, 2, 700, 800, 3)]
    for ordered in (True, False):
        ranged.delete_many({"key": {"$ne": 600}})
        result = ranged.bulk_write(updates, ordered=ordered)
        assert result.upserted_ids == {0: 1, 2: 2, 3: 700, 4: 800, 5: 3}
        assert result.matched_count == 1


def test_targeting_error_is_a_write_error_of_the_batch(ranged: Documents) -> None:
    """A statement refused by the router itself is reported like those refused by shards."""
    ranged.insert_one({"_id": "high", "key": 800})
    batch: list[Document] = [{"key": 1}, {"key": [1, 2]}, {"_id": "high", "key": 800}, {"key": 700}]
    with pytest.raises(BulkWriteError) as caught:
        ranged.insert_many(batch, ordered=False)
    assert [(item["index"], item["code"]) for item in caught.value.details["writeErrors"]] == [(1, 61), (2, 11000)]
    assert keys(ranged) == [1, 700, 800]


def test_one_hundred_thousand_documents_in_one_command(client: Client, hashed: Documents) -> None:
    reply = client[hashed.database.name].command(
        "insert", hashed.name, documents=[{"_id": n} for n in range(100_000)], ordered=False
    )
    assert reply["n"] == 100_000
    assert hashed.estimated_document_count() == 100_000
    reply = client[hashed.database.name].command("delete", hashed.name, deletes=[{"q": {}, "limit": 0}])
    assert reply["n"] == 100_000


def test_ordered_batch_that_alternates_between_shards(ranged: Documents) -> None:
    alternating = [{"_id": n, "key": n // 2 + (500 if n % 2 else 0)} for n in range(600)]
    assert len(ranged.insert_many(alternating, ordered=True).inserted_ids) == 600
    assert [document["_id"] for document in ranged.find().sort("_id", 1)] == list(range(600))


def test_unacknowledged_writes_arrive(collection: Documents) -> None:
    silent = collection.with_options(write_concern=WriteConcern(w=0))
    assert not silent.insert_many([{"_id": 1, "key": 1}, {"_id": 900, "key": 900}]).acknowledged
    eventually(lambda: collection.count_documents({}) == 2)
    assert not silent.update_many({}, {"$set": {"a": 1}}).acknowledged
    eventually(lambda: collection.count_documents({"a": 1}) == 2)
    assert not silent.delete_one({"_id": 900, "key": 900}).acknowledged
    eventually(lambda: keys(collection) == [1])


def test_connection_stays_in_sync_after_unacknowledged_writes(cluster: RunningCluster, ranged: Documents) -> None:
    """A reply to one of them would be mistaken for the reply to the next command."""
    with cluster.direct("router.0", maxPoolSize=1) as client:
        collection = client[ranged.database.name][ranged.name]
        silent = collection.with_options(write_concern=WriteConcern(w=0))
        for n in range(50):
            silent.insert_one({"_id": n, "key": n * 20})
            silent.insert_one({"_id": 0, "key": 0})  # fails, silently
            assert "isdbgrid" in client.admin.command("isdbgrid")
        assert collection.count_documents({}) == 50


def test_unsatisfiable_write_concern(ranged: Documents) -> None:
    hasty = ranged.with_options(write_concern=WriteConcern(w=2, wtimeout=1))
    with pytest.raises(BulkWriteError) as caught:
        hasty.insert_many([{"key": 1}, {"key": 501}])
    [concern_error] = caught.value.details["writeConcernErrors"]
    assert concern_error["code"] in (64, 100)
    assert keys(ranged) == [1, 501]


def test_retried_batch_is_written_once(cluster: RunningCluster, ranged: Documents) -> None:
    """The same statements with the same transaction number, as a driver repeats them after a lost reply."""
    inserts: Document = {"insert": ranged.name, "documents": [{"_id": n, "key": n * 100} for n in range(10)]}
    increments: Document = {
        "update": ranged.name,
        "updates": [{"q": {"_id": n, "key": n * 100}, "u": {"$inc": {"times": 1}}} for n in range(10)],
    }
    modify: Document = {
        "findAndModify": ranged.name,
        "query": {"_id": 7, "key": 700},
        "update": {"$inc": {"times": 1}},
        "new": True,
    }
    with cluster.direct("router.0") as client, client.start_session() as session:
        database = client[ranged.database.name]
        for number, command in enumerate([inserts, increments, modify], start=1):
            first, again = (
                database.command({**command, "txnNumber": Int64(number)}, session=session) for _ in range(2)
            )
            assert first.get("n") == again.get("n")
            assert first.get("value") == again.get("value")
            assert "writeErrors" not in again
    assert ranged.count_documents({}) == 10
    assert ranged.count_documents({"times": 1}) == 9
    assert ranged.find_one({"times": 2}) == {"_id": 7, "key": 700, "times": 2}
