"""Which updates are looked at more closely."""

from typing import Any

import bson
import pytest

from shardd.shard_key_updates import may_change_shard_key, mutable_part
from sharding.shard_key import ShardKeyPattern
from wire.rawbson import index


def may_change(query: dict[str, Any], update: Any, key: dict[str, Any]) -> bool:  # noqa: ANN401 - as in a command
    pattern = mutable_part(ShardKeyPattern.from_mapping(key))
    assert pattern is not None
    statement = bson.encode({"u": update})
    return may_change_shard_key(bson.encode(query), statement, index(statement)[b"u"], pattern)


@pytest.mark.parametrize(
    ("query", "update", "key"),
    [
        ({}, {"$set": {"b": 1}}, {"a": 1}),
        ({}, {"$set": {"ab": 1}}, {"a": 1}),
        ({}, {"$set": {"a.c": 1}}, {"a.b": 1}),
        ({}, {"$rename": {"b": "c"}}, {"a": 1}),
        ({}, [{"$set": {"b": "$a"}}, {"$unset": "c"}], {"a": 1}),
        ({"a": 1}, {"$set": {"a": 1, "b": 2}}, {"a": 1}),
        ({"a": 1}, {"$setOnInsert": {"a": 1}}, {"a": "hashed"}),
        ({"a": 1, "b": 2}, {"$set": {"a": 1}}, {"a": 1, "b": 1}),
        ({"a": 1}, {"a": 1, "b": 5}, {"a": 1}),
        ({"a": 1}, {"a": 1, "b": 5}, {"a": 1, "_id": 1}),
        ({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}}, {"a.b": 1}),
    ],
)
def test_let_through(query: dict[str, Any], update: object, key: dict[str, Any]) -> None:
    assert not may_change(query, update, key)


@pytest.mark.parametrize(
    ("query", "update", "key"),
    [
        ({}, {"$set": {"a": 1}}, {"a": 1}),
        ({}, {"$set": {"a": {"b": 1}}}, {"a.b": 1}),
        ({}, {"$set": {"a.b": 1}}, {"a": 1}),
        ({}, {"$set": {"a.$[].b": 1}}, {"a.x.b": 1}),
        ({}, {"$inc": {"b": 1, "a": 1}}, {"a": 1}),
        ({}, {"$unset": {"a": 1}}, {"a": 1}),
        ({}, {"$rename": {"a": "c"}}, {"a": 1}),
        ({}, {"$rename": {"b": "a"}}, {"a": 1}),
        ({"a": 1}, {"$set": {"a": 2}}, {"a": 1}),
        ({"a": 1}, {"$set": {"a": 2}}, {"a": "hashed"}),
        ({"a": {"$gt": 0}}, {"$set": {"a": 1}}, {"a": 1}),
        ({}, [{"$set": {"a": 1}}], {"a": 1}),
        ({}, [{"$addFields": {"a.b": 1}}], {"a": 1}),
        ({}, [{"$unset": ["b", "a"]}], {"a": 1}),
        ({}, [{"$replaceWith": "$b"}], {"a": 1}),
        ({"a": 1}, {"b": 5}, {"a": 1}),
        ({"a": 1}, {"a": 2}, {"a": 1}),
        ({"_id": 1}, {"a": 1}, {"a": 1}),
        ({"a": [1]}, {"a": [1]}, {"a": 1}),
        ({}, {}, {"a": 1}),
    ],
)
def test_looked_at(query: dict[str, Any], update: object, key: dict[str, Any]) -> None:
    assert may_change(query, update, key)


def test_mongod_itself_keeps_ids_as_they_are() -> None:
    assert mutable_part(ShardKeyPattern.from_mapping({"_id": "hashed"})) is None
    assert mutable_part(ShardKeyPattern.from_mapping({"_id.x": 1})) is None
