"""Updates that may change a shard key."""

from typing import Any

import bson
import pytest

from shardwright.shardd.metadata.namespace_state import mutable_part
from shardwright.shardd.operations.key_changes import may_change_shard_key
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.rawbson import index


def may_change(
    query: dict[str, Any],
    update: Any,  # noqa: ANN401 - as in a command
    key: dict[str, Any],
    *,
    is_collated: bool = False,
) -> bool:
    pattern = mutable_part(ShardKeyPattern.from_mapping(key))
    assert pattern is not None
    statement = bson.encode({"u": update})
    return may_change_shard_key(bson.encode(query), statement, index(statement)[b"u"], pattern, is_collated=is_collated)


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
def test_updates_that_keep_the_key(query: dict[str, Any], update: object, key: dict[str, Any]) -> None:
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
def test_updates_that_may_change_the_key(query: dict[str, Any], update: object, key: dict[str, Any]) -> None:
    assert may_change(query, update, key)


def test_mongod_itself_keeps_ids_unchanged() -> None:
    assert mutable_part(ShardKeyPattern.from_mapping({"_id": "hashed"})) is None
    assert mutable_part(ShardKeyPattern.from_mapping({"_id.x": 1})) is None


@pytest.mark.parametrize("update", [{"$set": {"k": "a"}}, {"k": "a", "b": 5}, {"$setOnInsert": {"k": "a"}}])
@pytest.mark.parametrize("kind", [1, "hashed"])
def test_a_collation_matches_other_strings_than_the_query_names(update: dict[str, Any], kind: object) -> None:
    assert not may_change({"k": "a"}, update, {"k": kind})
    assert may_change({"k": "a"}, update, {"k": kind}, is_collated=True)


@pytest.mark.parametrize("value", [1, 1.5, True, bson.ObjectId(), bson.Decimal128("1")])
def test_a_collation_does_not_matter_for_other_values(value: object) -> None:
    assert not may_change({"k": value}, {"$set": {"k": value}}, {"k": 1}, is_collated=True)
    assert may_change({"k": value, "l": {"m": "a"}}, {"$set": {"l": {"m": "a"}}}, {"k": 1, "l": 1}, is_collated=True)


@pytest.mark.parametrize("update", [{"$set": {"k": None}}, {"k": None}, {"b": 5}])
@pytest.mark.parametrize("kind", [1, "hashed"])
def test_a_query_for_null_matches_undefined_which_is_another_key(update: dict[str, Any], kind: object) -> None:
    assert may_change({"k": None}, update, {"k": kind})


@pytest.mark.parametrize("values", [(0.0, -0.0), (1, 1.0), (float("nan"), bson.Decimal128("NaN"))])
@pytest.mark.parametrize("kind", [1, "hashed"])
def test_equal_numbers_are_the_same_key_whatever_their_type(values: tuple[Any, Any], kind: object) -> None:
    pattern = ShardKeyPattern.from_mapping({"k": kind})
    first, second = (pattern.key_bytes_of_document(bson.encode({"k": value})) for value in values)
    assert first == second
