"""Writes that a router may send to all shards at once."""

from typing import Any

from pymongo import DeleteMany, DeleteOne, InsertOne, ReplaceOne, UpdateOne

from shardwright.sync.plan import Collection
from shardwright.sync.store import DocumentWrites, Write, stages
from shardwright.sync.writing import may_commute

INSERT: Write = InsertOne[Any]({"_id": 1})
REPLACE: Write = ReplaceOne[Any]({"_id": 1}, {"_id": 1}, upsert=True)
UPDATE: Write = UpdateOne({"_id": 1}, {"$set": {"a": 1}})
DELETE: Write = DeleteOne({"_id": 1})
DELETE_OTHERS: Write = DeleteMany({"_id": 1, "$nor": [{"a": 1}]})

KEY = (0x10, b"\1\0\0\0")
PLAIN = Collection("db.a", indexes=[{"name": "a_1", "key": {"a": 1}}])
WITH_UNIQUE_INDEX = Collection("db.a", indexes=[{"name": "a_1", "key": {"a": 1}, "unique": True}])
WITH_UNIQUE_KEY = Collection("db.a", key={"a": 1}, is_unique=True)


def test_documents_commute_unless_one_may_take_the_value_of_another() -> None:
    assert may_commute(PLAIN)
    for known in (None, WITH_UNIQUE_INDEX, WITH_UNIQUE_KEY):
        assert not may_commute(known)


def test_the_writes_of_a_document_keep_their_order_between_stages() -> None:
    """A driver keeps no order between deletions and other writes of one stage."""
    documents = [
        DocumentWrites("db.a", KEY, writes, True)
        for writes in ([DELETE_OTHERS, REPLACE], [INSERT], [REPLACE, UPDATE], [DELETE], [DELETE_OTHERS, REPLACE])
    ]
    assert stages(documents) == [[DELETE_OTHERS, INSERT, REPLACE, UPDATE, DELETE, DELETE_OTHERS], [REPLACE, REPLACE]]
    assert stages([]) == []
