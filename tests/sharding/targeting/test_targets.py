"""The golden table of targeting: filter, shard key and chunks on one side, the expected shards on the other."""

from typing import Any, TypeAlias

import bson
import pytest
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.regex import Regex

from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.targeting.filters import exact_shard_key, key_ranges
from shardwright.sharding.targeting.targets import target_filter, target_shard_key
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from tests.sharding.targeting.placements import split_at

Chunks: TypeAlias = tuple[dict[str, Any], list[dict[str, Any]]]
"""A shard key and the keys that its chunks are split at."""

# s0: below 10   s1: 10 to 20   s2: 20 and more, and every type behind the numbers
BY_NUMBER: Chunks = ({"a": 1}, [{"a": 10}, {"a": 20}])

# s0: numbers   s1: strings before "m"   s2: the others, and every type behind the strings
BY_TYPE: Chunks = ({"a": 1}, [{"a": ""}, {"a": "m"}])

# s0: strings before "c", and numbers   s1: "c" to "d"   s2: the other strings   s3: objects, regular expressions …
BY_PREFIX: Chunks = ({"a": 1}, [{"a": "c"}, {"a": "d"}, {"a": {}}])

# s0: a below 5   s1: 5 with b below 100   s2: 5 with b from 100 to 200   s3: the rest of 5, and a from 6 on
COMPOUND: Chunks = ({"a": 1, "b": 1}, [{"a": 5, "b": MinKey()}, {"a": 5, "b": 100}, {"a": 5, "b": 200}])

# s0: negative hashes (2, "x", ObjectId(…0)), s1: the others (0, 1, 3, null)
HASHED: Chunks = ({"a": "hashed"}, [{"a": Int64(0)}])

# s0: a.b below 10   s1: from 10 on
DOTTED: Chunks = ({"a.b": 1}, [{"a.b": 10}])

# s0: a below 5 or 5 with a negative hash   s1: the rest
RANGED_AND_HASHED: Chunks = ({"a": 1, "b": "hashed"}, [{"a": 5, "b": Int64(0)}])

GOLDEN: list[tuple[Chunks, dict[str, Any], str]] = [
    # equality
    (BY_NUMBER, {"a": 5}, "s0"),
    (BY_NUMBER, {"a": 10}, "s1"),
    (BY_NUMBER, {"a": 10.0}, "s1"),
    (BY_NUMBER, {"a": Decimal128("19.99")}, "s1"),
    (BY_NUMBER, {"a": {"$eq": 20}}, "s2"),
    (BY_NUMBER, {"a": 15, "other": 1}, "s1"),
    (BY_NUMBER, {"a": 15, "a.b": {"$exists": False}}, "s1"),
    (BY_NUMBER, {"a": {"x": 1}}, "s2"),
    (BY_NUMBER, {"a": None}, "s0"),
    (BY_NUMBER, {"a": {"$exists": False}}, "s0"),
    (BY_NUMBER, {"a": MinKey()}, "s0"),
    (BY_NUMBER, {"a": MaxKey()}, "s2"),
    # lists of values
    (BY_NUMBER, {"a": {"$in": [1, 2, 3]}}, "s0"),
    (BY_NUMBER, {"a": {"$in": [1, 25]}}, "s0 s2"),
    (BY_NUMBER, {"a": {"$in": [None, 12]}}, "s0 s1"),
    (BY_NUMBER, {"a": {"$all": [15]}}, "s1"),
    # ranges stay inside the type of their bound
    (BY_NUMBER, {"a": {"$lt": 10}}, "s0"),
    (BY_NUMBER, {"a": {"$lte": 10}}, "s0 s1"),
    (BY_NUMBER, {"a": {"$gt": 9}}, "s0 s1 s2"),
    (BY_NUMBER, {"a": {"$gte": 10}}, "s1 s2"),
    (BY_NUMBER, {"a": {"$gte": 10, "$lt": 20}}, "s1"),
    (BY_NUMBER, {"a": {"$gt": "x"}}, "s2"),
    (BY_TYPE, {"a": {"$gt": 5}}, "s0"),
    (BY_TYPE, {"a": {"$lt": "c"}}, "s1"),
    (BY_TYPE, {"a": {"$gte": "c"}}, "s1 s2"),
    (BY_TYPE, {"a": {"$gt": False}}, "s2"),
    (({"a": 1}, [{"a": float("-inf")}, {"a": False}]), {"a": {"$lt": 0}}, "s1"),
    (({"a": 1}, [{"a": ObjectId("0" * 24)}, {"a": False}]), {"a": {"$lt": ObjectId("1" * 24)}}, "s1"),
    # logic
    (BY_NUMBER, {"$and": [{"a": {"$gte": 10}}, {"a": {"$lt": 20}}]}, "s1"),
    (BY_NUMBER, {"$or": [{"a": 1}, {"a": 25}]}, "s0 s2"),
    (BY_NUMBER, {"$or": [{"a": 1}, {"other": 25}]}, "s0 s1 s2"),
    (BY_NUMBER, {"$or": [{"a": 1}, {"a": {"$gt": 15}}], "a": {"$gt": 16}}, "s1 s2"),
    (BY_NUMBER, {"$nor": [{"a": 1}]}, "s0 s1 s2"),
    # nothing can match: the shard of the first chunk is targeted
    (BY_NUMBER, {"a": 15, "$and": [{"a": 25}]}, "s0"),
    (BY_NUMBER, {"a": {"$in": []}}, "s0"),
    (BY_NUMBER, {"a": {"$gt": 20, "$lt": 10}}, "s0"),
    # filters without a condition on the key
    (BY_NUMBER, {}, "s0 s1 s2"),
    (BY_NUMBER, {"other": 1}, "s0 s1 s2"),
    (BY_NUMBER, {"a.b": 1}, "s0 s1 s2"),
    (BY_NUMBER, {"a": {"$ne": 5}}, "s0 s1 s2"),
    (BY_NUMBER, {"a": {"$not": {"$gt": 5}}}, "s0 s1 s2"),
    (BY_NUMBER, {"a": {"$in": [15, Regex("x")]}}, "s1 s2"),
    (BY_NUMBER, {"a": [1, 2]}, "s0 s1 s2"),
    (BY_NUMBER, {"$where": "this.a == 1"}, "s0 s1 s2"),
    (BY_NUMBER, {"$expr": {"$eq": ["$other", 15]}}, "s0 s1 s2"),
    (BY_NUMBER, {"$expr": {"$eq": ["$a", "$$ROOT.b"]}}, "s0 s1 s2"),
    (BY_NUMBER, {"$expr": {"$eq": ["$a", {"$literal": [15]}]}}, "s0 s1 s2"),
    (BY_NUMBER, {"$expr": {"$eq": ["$a.b", 15]}}, "s0 s1 s2"),
    (BY_NUMBER, {"$expr": {"$or": [{"$eq": ["$a", 15]}, "$other"]}}, "s0 s1 s2"),
    (BY_NUMBER, {"$expr": {"$in": ["$a", [15]]}}, "s0 s1 s2"),
    # comparisons in expressions, which have no type
    (BY_NUMBER, {"$expr": {"$eq": ["$a", 15]}}, "s1"),
    (BY_NUMBER, {"$expr": {"$eq": [15.0, "$a"]}}, "s1"),
    (BY_NUMBER, {"$expr": {"$eq": ["$a", {"$literal": 25}]}}, "s2"),
    (BY_NUMBER, {"$expr": {"$eq": ["$a", "x"]}}, "s2"),
    (BY_NUMBER, {"$expr": {"$eq": ["$a", None]}}, "s0"),
    (BY_NUMBER, {"$expr": {"$and": [{"$eq": ["$a", 15]}, "$other"]}}, "s1"),
    (BY_NUMBER, {"$expr": {"$or": [{"$eq": ["$a", 15]}, {"$gt": ["$a", 100]}]}}, "s1 s2"),
    (BY_NUMBER, {"$expr": {"$gt": [10, "$a"]}}, "s0"),
    (BY_NUMBER, {"$expr": {"$gte": ["$a", 20]}}, "s2"),
    (BY_NUMBER, {"$expr": {"$lt": ["$a", "x"]}}, "s0 s1 s2"),
    (BY_TYPE, {"$expr": {"$lt": ["$a", 5]}}, "s0"),
    (HASHED, {"$expr": {"$eq": ["$a", "x"]}}, "s0"),
    (HASHED, {"$expr": {"$gt": ["$a", "x"]}}, "s0 s1"),
    (DOTTED, {"$expr": {"$eq": ["$a.b", 12]}}, "s1"),
    (COMPOUND, {"a": 5, "$expr": {"$eq": ["$b", 150]}}, "s2"),
    # types
    (BY_NUMBER, {"a": {"$type": "string"}}, "s2"),
    (BY_TYPE, {"a": {"$type": ["int", 18]}}, "s0"),
    (BY_TYPE, {"a": {"$type": "string"}}, "s1 s2"),
    (BY_TYPE, {"a": {"$type": "array"}}, "s0 s1 s2"),
    (BY_TYPE, {"a": {"$mod": [2, 1]}}, "s0"),
    # regular expressions: strings with the literal prefix, and regular expressions, which sort after strings
    (BY_TYPE, {"a": Regex("^c")}, "s1 s2"),
    (BY_TYPE, {"a": {"$regex": "^n"}}, "s2"),
    (BY_PREFIX, {"a": Regex("^c")}, "s1 s3"),
    (BY_PREFIX, {"a": {"$regex": "^c", "$options": "s"}}, "s1 s3"),
    (BY_PREFIX, {"a": {"$regex": Regex(r"\Ac.x", "m")}}, "s1 s3"),
    (BY_PREFIX, {"a": {"$in": [Regex("^c"), "x"]}}, "s1 s2 s3"),
    (BY_PREFIX, {"a": Regex("c")}, "s0 s1 s2 s3"),
    (BY_PREFIX, {"a": Regex("^c", "i")}, "s0 s1 s2 s3"),
    (BY_PREFIX, {"a": Regex("^c", "m")}, "s0 s1 s2 s3"),
    (BY_PREFIX, {"a": Regex("^c?")}, "s0 s1 s2 s3"),
    (BY_PREFIX, {"a": Regex("^c|x")}, "s0 s1 s2 s3"),
    (BY_PREFIX, {"a": {"$not": Regex("^c")}}, "s0 s1 s2 s3"),
    # compound keys: equality on the first fields, then points or one range
    (COMPOUND, {"a": 5, "b": 150}, "s2"),
    (COMPOUND, {"b": 150, "a": 5}, "s2"),
    (COMPOUND, {"a": 4}, "s0"),
    (COMPOUND, {"a": 5}, "s1 s2 s3"),
    (COMPOUND, {"a": 5, "b": {"$gte": 100}}, "s2 s3"),
    (COMPOUND, {"a": 5, "b": {"$in": [1, 250]}}, "s1 s3"),
    (COMPOUND, {"a": {"$in": [1, 5]}, "b": 1}, "s0 s1"),
    (COMPOUND, {"a": {"$gt": 5}, "b": 1}, "s3"),
    (COMPOUND, {"b": 150}, "s0 s1 s2 s3"),
    (COMPOUND, {"$or": [{"a": 1, "b": 1}, {"a": 5, "b": 120}]}, "s0 s2"),
    # hashed
    (HASHED, {"a": 1}, "s1"),
    (HASHED, {"a": 1.0}, "s1"),
    (HASHED, {"a": "x"}, "s0"),
    (HASHED, {"a": {"$gt": 1}}, "s0 s1"),
    (HASHED, {"a": {"$in": [1, 1.0, Int64(1)]}}, "s1"),
    (HASHED, {"a": {"$in": [1, "x"]}}, "s0 s1"),
    (RANGED_AND_HASHED, {"a": 5, "b": 1}, "s1"),
    (RANGED_AND_HASHED, {"a": 5, "b": "x"}, "s0"),
    (RANGED_AND_HASHED, {"a": 5, "b": {"$gt": 1}}, "s0 s1"),
    (RANGED_AND_HASHED, {"a": 4}, "s0"),
    # dotted paths, and equality to the whole object above them
    (DOTTED, {"a.b": 5}, "s0"),
    (DOTTED, {"a": {"b": 12}}, "s1"),
    (DOTTED, {"a": {"$in": [{"b": 12}, {"b": 13, "c": 1}]}}, "s1"),
    (DOTTED, {"a": {"c": 12}}, "s0"),
    (DOTTED, {"a": 12}, "s0"),
    (DOTTED, {"a": {"$gt": {"b": 12}}}, "s0 s1"),
    (DOTTED, {"a.b.c": 12}, "s0 s1"),
]

COLLATED: list[tuple[Chunks, dict[str, Any], str]] = [
    (BY_TYPE, {"a": "c"}, "s0 s1 s2"),
    (BY_TYPE, {"a": {"$gt": "x"}}, "s0 s1 s2"),
    (BY_TYPE, {"a": {"$in": [1, "x"]}}, "s0 s1 s2"),
    (BY_TYPE, {"a": {"$in": [1, 2]}}, "s0"),
    (BY_TYPE, {"a": {"x": "c"}}, "s0 s1 s2"),
    (BY_TYPE, {"$and": [{"a": 1}, {"a": "c"}]}, "s0"),
    (BY_TYPE, {"$or": [{"a": 1}, {"a": "c"}]}, "s0 s1 s2"),
    (BY_TYPE, {"$expr": {"$eq": ["$a", "c"]}}, "s0 s1 s2"),
    (BY_TYPE, {"$expr": {"$lt": ["$a", 5]}}, "s0"),
    (BY_PREFIX, {"a": Regex("^c")}, "s1 s3"),
    (BY_NUMBER, {"a": 15}, "s1"),
    (HASHED, {"a": "x"}, "s0 s1"),
    (HASHED, {"a": 1}, "s1"),
]


def chunks_of(case: Chunks) -> RoutingTable:
    pattern = ShardKeyPattern.from_mapping(case[0])
    return split_at(pattern, [bson.encode(split) for split in case[1]])


@pytest.mark.parametrize(("chunks", "tried", "expected"), GOLDEN, ids=lambda value: str(value)[:60])
def test_filter_targets(chunks: Chunks, tried: dict[str, Any], expected: str) -> None:
    assert target_filter(bson.encode(tried), chunks_of(chunks)) == set(expected.split())


@pytest.mark.parametrize(("chunks", "tried", "expected"), COLLATED, ids=lambda value: str(value)[:60])
def test_filter_targets_under_a_collation(chunks: Chunks, tried: dict[str, Any], expected: str) -> None:
    assert target_filter(bson.encode(tried), chunks_of(chunks), simple_collation=False) == set(expected.split())


def test_no_chunk_holds_a_key_of_nothing_but_max_key() -> None:
    document = bson.encode({"a": MaxKey(), "b": MaxKey()})
    with pytest.raises(CommandError) as caught:
        target_shard_key(document, chunks_of(COMPOUND), "db.c")
    assert caught.value.code == ErrorCode.ShardKeyNotFound
    assert caught.value.message == "Cannot target single shard using key { a: MaxKey, b: MaxKey } for namespace db.c"


def test_a_key_with_a_string_is_not_targeted_under_a_collation() -> None:
    chunks = chunks_of(BY_TYPE)
    key = exact_shard_key(bson.encode({"a": "c"}), chunks.key_pattern)
    assert key is not None
    assert target_shard_key(key, chunks, "db.c") == "s1"
    with pytest.raises(CommandError, match=r"due to collation of key a for namespace db\.c"):
        target_shard_key(key, chunks, "db.c", simple_collation=False)


def test_one_whole_key_is_a_point() -> None:
    pattern = ShardKeyPattern.from_mapping(COMPOUND[0])
    found = key_ranges(bson.encode({"b": 2, "a": {"$in": [1]}}), pattern)
    assert found.point == pattern.key_bytes(bson.encode({"a": 1, "b": 2}))
    assert key_ranges(bson.encode({"a": 1}), pattern).point is None


def test_huge_products_of_points_are_widened() -> None:
    pattern = ShardKeyPattern.from_mapping({"a": 1, "b": 1})
    many = {"$in": list(range(1_000))}
    ranges = key_ranges(bson.encode({"a": many, "b": many}), pattern).ranges
    assert len(ranges) == 1_000
    key = pattern.key_bytes(bson.encode({"a": 7, "b": 7}))
    assert any(low <= key < high for low, high in ranges)


def test_huge_intersections_of_alternatives_are_widened() -> None:
    pattern = ShardKeyPattern.from_mapping({"a": 1, "b": 1})
    alternatives = {"$or": [{"a": number, "b": number} for number in range(40)]}
    ranges = key_ranges(bson.encode({"$and": [alternatives] * 3}), pattern).ranges
    assert len(ranges) == 40


def test_deeply_nested_filters_limit_nothing() -> None:
    tried: dict[str, Any] = {"a": 1}
    for _ in range(120):
        tried = {"$and": [tried]}
    assert key_ranges(bson.encode(tried), ShardKeyPattern.from_mapping({"a": 1})).is_everything


def test_values_nested_too_deep_are_refused() -> None:
    deep = rawbson.EMPTY_DOCUMENT
    for _ in range(5_000):
        deep = rawbson.wrap_value(rawbson.OBJECT, deep, b"x")
    document = rawbson.wrap_value(rawbson.OBJECT, deep, b"a")
    table = chunks_of(BY_NUMBER)
    for look in (
        lambda: target_filter(document, table),
        lambda: exact_shard_key(rawbson.wrap_value(rawbson.OBJECT, document, b"a"), table.key_pattern),
    ):
        with pytest.raises(CommandError) as caught:
            look()
        assert caught.value.code == ErrorCode.Overflow
