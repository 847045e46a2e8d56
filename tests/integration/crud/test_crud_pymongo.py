"""Create, read, update and delete with pymongo, on every kind of collection."""

import pytest
from pymongo import ASCENDING, DESCENDING, ReturnDocument
from pymongo.database import Database
from pymongo.errors import DuplicateKeyError

from tests.integration.sharded import Document, Documents, shard_by_range
from tests.local_cluster import Client

COUNT = 1000


def documents() -> list[Document]:
    """`COUNT` documents, half of them with keys of each shard."""
    return [{"_id": n, "key": n, "group": n % 10, "tags": [n % 3, "all"]} for n in range(COUNT)]


@pytest.fixture
def filled(collection: Documents) -> Documents:
    collection.insert_many(documents())
    return collection


def test_insert_one_and_find_it(collection: Documents) -> None:
    inserted = collection.insert_one({"key": 700, "text": "here"})
    assert inserted.acknowledged
    assert collection.find_one({"key": 700}) == {"_id": inserted.inserted_id, "key": 700, "text": "here"}
    assert collection.find_one({"key": 701}) is None


def test_insert_many_keeps_every_document(filled: Documents) -> None:
    assert sorted(filled.find(), key=lambda document: document["_id"]) == documents()


def test_documents_are_stored_where_their_chunks_are(
    ranged: Documents, lower_mongod: Client, upper_mongod: Client
) -> None:
    ranged.insert_many(documents())
    for mongod, keys in [(lower_mongod, range(500)), (upper_mongod, range(500, COUNT))]:
        stored = mongod[ranged.database.name][ranged.name].find().sort("key", 1)
        assert [document["key"] for document in stored] == list(keys)


def test_hash_distributes_documents_over_the_shards(
    hashed: Documents, lower_mongod: Client, upper_mongod: Client
) -> None:
    hashed.insert_many(documents())
    counts = [mongod[hashed.database.name][hashed.name].count_documents({}) for mongod in (lower_mongod, upper_mongod)]
    assert sum(counts) == COUNT
    assert min(counts) > COUNT // 4


def test_sort_skip_and_limit_over_both_shards(filled: Documents) -> None:
    found = filled.find({}, {"key": 1, "_id": 0}).sort([("group", DESCENDING), ("key", ASCENDING)]).skip(95).limit(10)
    expected = sorted(documents(), key=lambda document: (-document["group"], document["key"]))[95:105]
    assert list(found) == [{"key": document["key"]} for document in expected]


@pytest.mark.parametrize("batch_size", [1, 7, 400])
def test_batches_of_a_sorted_cursor(filled: Documents, batch_size: int) -> None:
    limit = min(COUNT, batch_size * 20)
    found = filled.find().sort("key", DESCENDING).limit(limit).batch_size(batch_size)
    assert [document["key"] for document in found] == list(range(COUNT - 1, COUNT - 1 - limit, -1))


def test_sort_by_a_field_that_the_projection_excludes(filled: Documents) -> None:
    found = list(filled.find({}, {"_id": 1}).sort("key", DESCENDING).limit(3))
    assert found == [{"_id": 999}, {"_id": 998}, {"_id": 997}]


def test_range_query_across_the_boundary(filled: Documents) -> None:
    found = filled.find({"key": {"$gte": 495, "$lt": 505}}).sort("key", 1)
    assert [document["key"] for document in found] == list(range(495, 505))


def test_update_one_by_shard_key(filled: Documents) -> None:
    for key in (3, 900):
        updated = filled.update_one({"_id": key, "key": key}, {"$set": {"seen": True}})
        assert (updated.matched_count, updated.modified_count) == (1, 1)
    assert {document["key"] for document in filled.find({"seen": True})} == {3, 900}


def test_update_many_on_both_shards(filled: Documents) -> None:
    updated = filled.update_many({"group": 4}, {"$inc": {"group": 100}})
    assert (updated.matched_count, updated.modified_count) == (100, 100)
    assert filled.count_documents({"group": 104}) == 100


def test_upsert_replace_and_delete(filled: Documents) -> None:
    upserted = filled.update_one({"_id": 5000, "key": 5000}, {"$set": {"new": 1}}, upsert=True)
    assert upserted.upserted_id == 5000
    replaced = filled.replace_one({"_id": 5000, "key": 5000}, {"_id": 5000, "key": 5000, "new": 2})
    assert replaced.modified_count == 1
    assert filled.find_one({"_id": 5000}) == {"_id": 5000, "key": 5000, "new": 2}
    assert filled.delete_one({"_id": 5000, "key": 5000}).deleted_count == 1
    assert filled.delete_many({"key": {"$gte": 490, "$lt": 510}}).deleted_count == 20
    assert filled.count_documents({}) == COUNT - 20


def test_find_and_modify(filled: Documents) -> None:
    found = filled.find_one_and_update(
        {"_id": 600, "key": 600}, {"$inc": {"group": 1000}}, return_document=ReturnDocument.AFTER
    )
    assert found == {**documents()[600], "group": 1000}
    assert filled.find_one_and_delete({"_id": 600, "key": 600}) == found
    assert filled.find_one_and_replace({"_id": 600, "key": 600}, {"key": 600}) is None


def test_estimated_count_is_the_sum_of_the_shards(
    filled: Documents, lower_mongod: Client, upper_mongod: Client
) -> None:
    """Each mongod counts from memory; after operations that it was killed in, it may be wrong by as many documents."""
    mongods = (lower_mongod, upper_mongod)
    counts = [mongod[filled.database.name][filled.name].estimated_document_count() for mongod in mongods]
    assert filled.estimated_document_count() == sum(counts) > 0


def test_counts_and_distinct_values(filled: Documents) -> None:
    assert filled.count_documents({"group": {"$lt": 3}}) == 300
    assert filled.count_documents({"key": {"$gte": 495}}, skip=5, limit=10) == 10
    assert sorted(filled.distinct("group")) == list(range(10))
    assert filled.distinct("group", {"key": 503}) == [3]


def test_duplicate_id_on_the_same_shard(filled: Documents) -> None:
    with pytest.raises(DuplicateKeyError) as caught:
        filled.insert_one({"_id": 700, "key": 700})
    assert caught.value.details is not None
    assert caught.value.details["keyValue"] == {"_id": 700}


def test_ids_are_unique_per_shard_only(ranged: Documents) -> None:
    ranged.insert_many([{"_id": "same", "key": 1}, {"_id": "same", "key": 501}])
    assert ranged.count_documents({"_id": "same"}) == 2


def test_aggregate_on_one_shard(filled: Documents) -> None:
    grouped = filled.aggregate([{"$match": {"_id": 42, "key": 42}}, {"$group": {"_id": "$group", "n": {"$sum": 1}}}])
    assert list(grouped) == [{"_id": 2, "n": 1}]


def test_collections_of_a_database(database: Database[Document], placed: Documents) -> None:
    database.unsharded.insert_one({})
    assert sorted(database.list_collection_names()) == ["ranged", "unsharded"]
    placed.insert_one({"key": 501})
    placed.drop()
    assert placed.find_one() is None
    assert database.list_collection_names() == ["unsharded"]


def test_a_database_is_created_and_dropped(client: Client) -> None:
    name = "integration_passing"
    assert client[name].things.find_one() is None
    assert name not in client.list_database_names()
    client[name].things.insert_one({"_id": 1})
    assert name in client.list_database_names()
    client.drop_database(name)
    assert name not in client.list_database_names()


def test_indexes_are_on_every_shard(placed: Documents, lower_mongod: Client, upper_mongod: Client) -> None:
    assert placed.create_index([("group", 1)]) == "group_1"
    for mongod in (lower_mongod, upper_mongod):
        assert "group_1" in mongod[placed.database.name][placed.name].index_information()
    placed.insert_many(documents())
    assert len(list(placed.find({"group": 2}).hint("group_1"))) == COUNT // 10
    placed.drop_index("group_1")
    assert sorted(placed.index_information()) == ["_id_", "key_1"]


def test_two_collections_are_not_mixed_up(database: Database[Document]) -> None:
    first, second = shard_by_range(database, "first"), shard_by_range(database, "second")
    first.insert_many({"key": n} for n in range(0, 1000, 100))
    second.insert_many({"key": n} for n in range(0, 1000, 10))
    assert (first.count_documents({}), second.count_documents({})) == (10, 100)
