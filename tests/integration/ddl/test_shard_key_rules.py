"""The requirements of a shard key on documents, filters and updates."""

from collections.abc import Callable

import bson
import pytest
from bson.max_key import MaxKey
from bson.min_key import MinKey
from pymongo.database import Database
from pymongo.errors import OperationFailure, WriteError

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import decode_document
from tests.integration.raw_client import raw_client
from tests.integration.sharded import LOWER, UPPER, Document, Documents, shard_collection
from tests.local_cluster import Client, RunningCluster


def code_of(action: Callable[[], object]) -> int | None:
    """The code with which an action fails."""
    with pytest.raises(OperationFailure) as caught:
        action()
    return caught.value.code


def test_missing_field_is_null(ranged: Documents, lower_mongod: Client) -> None:
    ranged.insert_many([{"_id": "absent"}, {"_id": "null", "key": None}])
    assert lower_mongod[ranged.database.name][ranged.name].count_documents({}) == 2
    assert sorted(document["_id"] for document in ranged.find({"key": None})) == ["absent", "null"]


@pytest.mark.parametrize("value", [[1], [], [[1]]])
def test_arrays_are_not_key_values(ranged: Documents, value: list[object]) -> None:
    assert code_of(lambda: ranged.insert_one({"key": value})) == 61
    assert ranged.count_documents({}) == 0


def test_array_on_the_path_of_a_dotted_key(database: Database[Document]) -> None:
    shard_collection(database, "dotted", {"a.b": 1})
    database.dotted.insert_one({"a": {"b": 1}})
    assert code_of(lambda: database.dotted.insert_one({"a": [{"b": 1}]})) == 61
    assert code_of(lambda: database.dotted.insert_one({"a": {"b": [1]}})) == 61
    assert database.dotted.find_one({"a.b": 1}, {"_id": 0}) == {"a": {"b": 1}}


def test_extreme_values_belong_to_a_shard(ranged: Documents, lower_mongod: Client, upper_mongod: Client) -> None:
    ranged.insert_many([{"_id": "min", "key": MinKey()}, {"_id": "object", "key": {"a": 1}}])
    assert lower_mongod[ranged.database.name][ranged.name].distinct("_id") == ["min"]
    assert upper_mongod[ranged.database.name][ranged.name].distinct("_id") == ["object"]
    assert code_of(lambda: ranged.insert_one({"key": MaxKey()})) == 61


def test_update_of_one_document_must_identify_its_shard(ranged: Documents) -> None:
    ranged.insert_many([{"_id": 1, "key": 1}, {"_id": 2, "key": 700}])
    assert code_of(lambda: ranged.update_one({"other": 1}, {"$set": {"a": 1}})) == 72
    assert ranged.update_one({"_id": 2}, {"$set": {"a": 1}}).modified_count == 1
    assert ranged.update_one({"key": {"$gt": 600}}, {"$set": {"b": 1}}).modified_count == 1
    assert ranged.find_one({"_id": 2}) == {"_id": 2, "key": 700, "a": 1, "b": 1}


def test_delete_of_one_document_must_contain_its_key(ranged: Documents) -> None:
    ranged.insert_many([{"_id": 1, "key": 1}, {"_id": 2, "key": 700}])
    assert code_of(lambda: ranged.delete_one({"other": 1})) == 61
    assert ranged.delete_one({"_id": 2}).deleted_count == 1
    assert ranged.delete_one({"key": 1}).deleted_count == 1


def test_upsert_must_contain_the_key(ranged: Documents) -> None:
    assert code_of(lambda: ranged.update_one({"_id": 1}, {"$set": {"a": 1}}, upsert=True)) == 61
    assert code_of(lambda: ranged.update_many({"key": {"$gt": 5}}, {"$set": {"a": 1}}, upsert=True)) == 61
    assert ranged.update_one({"key": 700}, {"$set": {"_id": 1}}, upsert=True).upserted_id == 1


def test_find_and_modify_must_contain_the_key(ranged: Documents) -> None:
    ranged.insert_one({"_id": 1, "key": 700})
    assert code_of(lambda: ranged.find_one_and_update({"_id": 1}, {"$set": {"a": 1}})) == 61
    assert code_of(lambda: ranged.find_one_and_delete({"key": {"$gt": 1}})) == 61
    assert ranged.find_one_and_delete({"key": 700}) == {"_id": 1, "key": 700}


def test_key_value_changes_only_with_a_filter_that_contains_it(ranged: Documents) -> None:
    ranged.insert_one({"_id": 1, "key": 700})
    with pytest.raises(WriteError) as caught:
        ranged.update_one({"_id": 1}, {"$set": {"key": 701}})
    assert caught.value.code == 31025
    assert code_of(lambda: ranged.update_many({"key": 700}, {"$set": {"key": 701}})) in (72, 31025)
    assert ranged.find_one({"_id": 1}) == {"_id": 1, "key": 700}


def test_id_cannot_change(ranged: Documents) -> None:
    ranged.insert_one({"_id": 1, "key": 700})
    assert code_of(lambda: ranged.update_one({"key": 700}, {"$set": {"_id": 2}})) == 66
    assert code_of(lambda: ranged.replace_one({"key": 700}, {"_id": 2, "key": 700})) == 66


def test_unique_index_must_begin_with_the_shard_key(placed: Documents) -> None:
    assert code_of(lambda: placed.create_index("other", unique=True)) == 67
    assert placed.create_index([("key", 1), ("other", 1)], unique=True) == "key_1_other_1"
    placed.insert_one({"key": 1, "other": 1})
    assert code_of(lambda: placed.insert_one({"key": 1, "other": 1})) == 11000


def test_prefix_of_a_compound_key_targets(database: Database[Document]) -> None:
    namespace = f"{database.name}.compound"
    shard_collection(database, "compound", {"a": 1, "b": 1})
    admin = database.client.admin
    admin.command("split", namespace, middle={"a": 5, "b": MinKey()})
    admin.command("moveChunk", namespace, find={"a": 5, "b": 0}, to=UPPER)
    database.compound.insert_many({"a": a, "b": b} for a in range(10) for b in range(3))
    for a, shard in [(2, LOWER), (7, UPPER)]:
        plan = database.compound.find({"a": a}).explain()["queryPlanner"]["winningPlan"]
        assert [each["shardName"] for each in plan["shards"]] == [shard]
        assert database.compound.count_documents({"a": a}) == 3
    assert database.compound.count_documents({"b": 1}) == 10
    assert database.compound.update_one({"a": 7, "b": 1}, {"$set": {"c": 1}}).modified_count == 1


def test_hashed_key_targets_equality_only(hashed: Documents) -> None:
    hashed.insert_many({"_id": n} for n in range(100))
    one = hashed.find({"_id": 5}).explain()["queryPlanner"]["winningPlan"]
    assert one["stage"] == "SINGLE_SHARD"
    some = hashed.find({"_id": {"$gt": 5}}).explain()["queryPlanner"]["winningPlan"]
    assert some["stage"] == "SHARD_MERGE"
    assert hashed.count_documents({"_id": {"$gt": 5}}) == 94
    # Equal numbers of different types have the same hash.
    assert hashed.find_one({"_id": 5.0}) == {"_id": 5}


@pytest.mark.parametrize("command", ["shardCollection", "reshardCollection", "refineCollectionShardKey"])
def test_a_key_does_not_have_a_field_twice(cluster: RunningCluster, placed: Documents, command: str) -> None:
    """With the words that a mongod has for an index on it."""
    key = bson.encode({command: placed.full_name, "key": {"key": 1, "kex": 1}, "$db": "admin"}).replace(b"kex", b"key")
    with raw_client(cluster.address("router.0")) as client:
        client.send(op_msg(key, request_id=1))
        reply = decode_document(client.receive()[21:])
    assert (reply["code"], reply["errmsg"]) == (
        ErrorCode.BadValue,
        "The field 'key' appears multiple times in the index key pattern { key: 1, key: 1 }",
    )
