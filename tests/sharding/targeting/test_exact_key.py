"""Filters with an exact shard key, or exact _id: every case as the router code of mongod 6.0.5 decides it."""

from typing import Any

import bson
import pytest
from bson.min_key import MinKey
from bson.regex import Regex

from shardwright.sharding.hashing import hash_value
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.targeting.filters import exact_shard_key, has_exact_id
from shardwright.wire import rawbson

PATTERN = ShardKeyPattern.from_mapping({"a.b": 1, "c": "hashed"})


def hash_of(value: object) -> int:
    document = bson.encode({"v": value})
    return hash_value(document, rawbson.index(document)[b"v"])


@pytest.mark.parametrize(
    ("tried", "expected"),
    [
        ({"a.b": 1, "c": 1}, 1),
        ({"a": {"b": 1}, "c": 1}, 1),
        ({"a": {"b": 1, "x": 2}, "c": 1}, 1),
        ({"a.b": {"$in": [1]}, "c": 1}, 1),
        ({"a.b": {"$in": [1, 1]}, "c": 1}, 1),
        ({"a.b": {"$all": [1]}, "c": 1}, 1),
        ({"$or": [{"a.b": 1}], "c": 1}, 1),
        ({"$or": [{"$and": [{"a.b": 1}]}], "c": 1}, 1),
        ({"$and": [{"a.b": 1}, {"c": 1}]}, 1),
        ({"a.b": None, "c": 1}, None),
        ({"a.b": MinKey(), "c": 1}, MinKey()),
        ({"a.b": {"$eq": 1, "$gt": 0}, "c": 1}, 1),
        ({"a": {"$eq": {"b": 1}}, "c": 1}, 1),
        ({"a": {"$in": [{"b": 1}]}, "c": 1}, 1),
        ({"a.b": {"x": 1}, "c": 1}, {"x": 1}),
        ({"a.b": 1, "c": 1, "$comment": "x", "other": {"$gt": 5}}, 1),
        ({"a.b": 1, "c": 1, "$and": [{"a.b": Regex("x")}]}, 1),
        ({"a.b": 1, "c": 1, "a.b.x": {"$exists": False}}, 1),
    ],
    ids=str,
)
def test_key_is_exact(tried: dict[str, Any], expected: object) -> None:
    key = exact_shard_key(bson.encode(tried), PATTERN)
    assert key is not None
    assert bson.decode(key) == {"a.b": expected, "c": hash_of(1)}


@pytest.mark.parametrize(
    "tried",
    [
        {},
        {"a.b": 1},
        {"a": {"x": 1}, "c": 1},
        {"a": {}, "c": 1},
        {"a": {"b": [1]}, "c": 1},
        {"a": 5, "c": 1},
        {"a.b": {"$in": [1, 2]}, "c": 1},
        {"a.b": {"$all": [1, 1]}, "c": 1},
        {"a.b": {"$exists": False}, "c": 1},
        {"a.b": {"$gte": 1, "$lte": 1}, "c": 1},
        {"a.b": Regex("x"), "c": 1},
        {"a.b": {"$eq": Regex("x")}, "c": 1},
        {"a.b": {"$in": [Regex("x")]}, "c": 1},
        {"a.b": [1], "c": 1},
        {"a.b": {"$not": {"$ne": 1}}, "c": 1},
        {"a.b": {"$elemMatch": {"$eq": 1}}, "c": 1},
        {"$or": [{"a.b": 1}, {"a.b": 1}], "c": 1},
        {"$nor": [{"a.b": {"$ne": 1}}], "c": 1},
        {"$expr": {"$and": [{"$eq": ["$a.b", 1]}, {"$eq": ["$c", 1]}]}},
        # fixed twice, above, at or below the same path
        {"a.b": 1, "c": 1, "$and": [{"a.b": 2}]},
        {"a.b": 1, "c": 1, "$and": [{"a.b": 1}]},
        {"a": {"b": 1}, "a.b": 1, "c": 1},
        {"a.b": 1, "a.b.x": 1, "c": 1},
    ],
    ids=str,
)
def test_key_is_not_exact(tried: dict[str, Any]) -> None:
    assert exact_shard_key(bson.encode(tried), PATTERN) is None


@pytest.mark.parametrize(
    ("tried", "exact", "exact_if_collated"),
    [
        ({"_id": 1}, True, True),
        ({"_id": None}, True, True),
        ({"_id": "x"}, True, False),
        ({"_id": {"a": 1}}, True, False),
        ({"_id": {"$in": [1]}, "x": 2}, True, True),
        ({"$and": [{"_id": 1}]}, True, True),
        ({"_id": Regex("a")}, False, False),
        ({"_id": [1]}, False, False),
        ({"_id": {"$gt": 1}}, False, False),
        ({"x": 1}, False, False),
    ],
    ids=str,
)
def test_id_is_exact(tried: dict[str, Any], exact: bool, exact_if_collated: bool) -> None:
    assert has_exact_id(bson.encode(tried)) == exact
    assert has_exact_id(bson.encode(tried), collection_collation=False) == exact_if_collated
