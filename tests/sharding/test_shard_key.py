"""Shard key patterns: which are accepted, and how they apply to documents, bounds and indexes."""

from typing import Any

import bson
import pytest
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from hypothesis import given
from hypothesis import strategies as st

from shardwright.sharding.hashing import hash_value
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from tests.sharding import bson_values
from tests.sharding.bson_values import Value, document_of, wrapped

PAIR = ShardKeyPattern.from_mapping({"a": 1, "b.c": 1})
HASHED = ShardKeyPattern.from_mapping({"a": 1, "b.c": "hashed"})


def failed_to_parse(pattern: str, field: str) -> str:
    return (
        f"Shard key {pattern} can contain at most one 'hashed' field, and/or multiple numerical fields set to a value "
        f"of 1. Failed to parse field {field}"
    )


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ({}, "Shard key is empty"),
        ({"a": -1}, failed_to_parse("{ a: -1 }", "a")),
        ({"a": 0}, failed_to_parse("{ a: 0 }", "a")),
        ({"a": 2}, failed_to_parse("{ a: 2 }", "a")),
        ({"a": "text"}, failed_to_parse('{ a: "text" }', "a")),
        ({"a": "hashed", "b": "hashed"}, failed_to_parse('{ a: "hashed", b: "hashed" }', "b")),
        ({"a": [1]}, failed_to_parse("{ a: [ 1 ] }", "a")),
        ({"a": {"b": 1}}, failed_to_parse("{ a: { b: 1 } }", "a")),
        ({"a": None}, failed_to_parse("{ a: null }", "a")),
        ({"a": True}, failed_to_parse("{ a: true }", "a")),
        ({"a": float("nan")}, failed_to_parse("{ a: nan.0 }", "a")),
        ({"": 1}, "Field  is empty"),
        ({"a.": 1}, "Field a. contains empty parts"),
        ({".a": 1}, "Field .a contains empty parts"),
        ({"a..b": 1}, "Field a..b contains empty parts"),
        ({"$a": 1}, "Field $a contains parts that start with '$'"),
        ({"a.$**": 1}, "Field a.$** contains parts that start with '$'"),
    ],
    ids=str,
)
def test_pattern_is_refused_as_by_mongod(pattern: dict[str, Any], message: str) -> None:
    with pytest.raises(CommandError) as caught:
        ShardKeyPattern.from_mapping(pattern)
    assert (caught.value.code, caught.value.message) == (ErrorCode.BadValue, message)


@pytest.mark.parametrize("one", [1, 1.0, 1.5, Int64(1), Decimal128("1")], ids=str)
def test_any_one_is_ascending(one: object) -> None:
    pattern = ShardKeyPattern.from_mapping({"a": one, "a.b": one})
    assert pattern.hashed_field is None
    assert [field.name for field in pattern.fields] == [b"a", b"a.b"]


def test_the_name_of_its_index() -> None:
    """As MongoDB names it when ``shardCollection`` creates it."""
    assert ShardKeyPattern.from_mapping({"a": 1.0, "b.c": "hashed", "d": Int64(1)}).index_name == "a_1_b.c_hashed_d_1"


@pytest.mark.parametrize(
    ("document", "key"),
    [
        ({"a": 1, "b": {"c": "x"}}, {"a": 1, "b.c": "x"}),
        ({"b": {"z": 0, "c": "x"}, "z": 0, "a": 1}, {"a": 1, "b.c": "x"}),
        ({}, {"a": None, "b.c": None}),
        ({"a": 1, "b": 2}, {"a": 1, "b.c": None}),
        ({"a": 1, "b": {"d": 1}}, {"a": 1, "b.c": None}),
        ({"a": 1, "b.c": 5}, {"a": 1, "b.c": None}),
        ({"a": {"x": [1]}, "b": {"c": {"y": [1]}}}, {"a": {"x": [1]}, "b.c": {"y": [1]}}),
    ],
    ids=str,
)
def test_key_of_document(document: dict[str, Any], key: dict[str, Any]) -> None:
    found = PAIR.extract_from_document(bson.encode(document))
    assert list(bson.decode(found).items()) == list(key.items())


@pytest.mark.parametrize(
    "document",
    [{"a": [1]}, {"a": []}, {"b": [1]}, {"b": [{"c": 1}]}, {"b": {"c": [1]}}, {"a": 1, "b": {"c": []}}],
    ids=str,
)
def test_arrays_on_the_path_are_refused(document: dict[str, Any]) -> None:
    for pattern in (PAIR, HASHED):
        for extract in (pattern.extract_from_document, pattern.key_bytes_of_document):
            with pytest.raises(CommandError) as caught:
                extract(bson.encode(document))
            assert caught.value.code == ErrorCode.ShardKeyNotFound
            assert caught.value.message == "Shard key cannot contain array values or array descendants."


def test_hashed_field_holds_the_hash_and_null_is_hashed_too() -> None:
    document, span = wrapped(bson_values.string("x"))
    key = bson.decode(HASHED.extract_from_document(bson.encode({"a": 1, "b": {"c": "x"}})))
    assert key == {"a": 1, "b.c": hash_value(document, span)}
    assert isinstance(key["b.c"], Int64)
    document, span = wrapped((rawbson.NULL, b""))
    assert bson.decode(HASHED.extract_from_document(bson.encode({"a": 1})))["b.c"] == hash_value(document, span)


_not_arrays = bson_values.values.filter(lambda value: value[0] != rawbson.ARRAY)


def test_a_query_by_the_key_and_the_id() -> None:
    document = bson.encode({"b": {"c": "x", "d": 1}, "_id": {"$a": 1}, "z": 1})
    expected = {"a": {"$eq": None}, "b.c": {"$eq": "x"}, "_id": {"$eq": {"$a": 1}}}
    assert bson.decode(HASHED.query_of_document(document)) == expected


@given(a=_not_arrays, c=_not_arrays)
def test_both_ways_to_the_key_bytes_agree(a: Value, c: Value) -> None:
    document = document_of([("z", a), ("b", (rawbson.OBJECT, document_of([("c", c)]))), ("a", a)])
    for pattern in (PAIR, HASHED):
        key = pattern.extract_from_document(document)
        assert pattern.key_bytes_of_document(document) == pattern.key_bytes(key)
        assert pattern.is_valid_bound(key)
        assert pattern.global_min_bytes() <= pattern.key_bytes(key) <= pattern.global_max_bytes()


def test_global_bounds() -> None:
    assert bson.decode(PAIR.global_min()) == {"a": MinKey(), "b.c": MinKey()}
    assert bson.decode(PAIR.global_max()) == {"a": MaxKey(), "b.c": MaxKey()}
    assert PAIR.key_bytes(PAIR.global_min()) == PAIR.global_min_bytes()
    assert PAIR.key_bytes(PAIR.global_max()) == PAIR.global_max_bytes()


def test_prefixes_are_extended_to_bounds() -> None:
    bound = bson.encode({"a": 5})
    assert bson.decode(PAIR.extend_range_bound(bound)) == {"a": 5, "b.c": MinKey()}
    assert bson.decode(PAIR.extend_range_bound(bound, upper_inclusive=True)) == {"a": 5, "b.c": MaxKey()}
    full = bson.encode({"a": 5, "b.c": 1})
    assert PAIR.extend_range_bound(full) == full


@pytest.mark.parametrize(
    "bound", [{"b.c": 1}, {"b.c": 1, "a": 1}, {"a": 1, "b": 1}, {"a": 1, "b.c": 1, "d": 1}], ids=str
)
def test_other_fields_are_no_prefix(bound: dict[str, Any]) -> None:
    with pytest.raises(CommandError) as caught:
        PAIR.extend_range_bound(bson.encode(bound))
    assert caught.value.code == ErrorCode.BadValue


@pytest.mark.parametrize(
    ("key", "is_key", "normalized"),
    [
        ({"a": 1, "b.c": 2}, True, {"a": 1, "b.c": 2}),
        ({"b.c": 2, "a": 1}, True, {"a": 1, "b.c": 2}),
        ({"a": 1, "b.c": 2, "d": 3}, True, None),
        ({"a": 1}, False, None),
        ({"a": 1, "b": {"c": 2}}, False, None),
        ({"a": 1, "b.c": [2]}, False, None),
    ],
    ids=str,
)
def test_keys_are_normalized(key: dict[str, Any], is_key: bool, normalized: dict[str, Any] | None) -> None:
    raw = bson.encode(key)
    assert PAIR.is_shard_key(raw) == is_key
    assert PAIR.normalize(raw) == (None if normalized is None else bson.encode(normalized))


@pytest.mark.parametrize(
    ("pattern", "key", "valid"),
    [
        (PAIR, {"a": 1, "b.c": MinKey()}, True),
        (PAIR, {"a": MinKey(), "b.c": MinKey()}, False),
        (PAIR, {"a": MaxKey(), "b.c": MaxKey()}, False),
        (PAIR, {"a": 1}, False),
        (PAIR, {"b.c": 1, "a": 1}, False),
        (PAIR, {"a": [1], "b.c": 1}, False),
        (HASHED, {"a": 1, "b.c": Int64(5)}, True),
        (HASHED, {"a": 1, "b.c": 5}, False),
        (HASHED, {"a": 1, "b.c": "x"}, False),
        (HASHED, {"a": 1, "b.c": MinKey()}, True),
    ],
    ids=str,
)
def test_split_points(pattern: ShardKeyPattern, key: dict[str, Any], valid: bool) -> None:
    assert pattern.is_valid_split_point(bson.encode(key)) == valid


@pytest.mark.parametrize(
    ("key", "index", "supported"),
    [
        ({"a": 1}, {"key": {"a": 1}}, True),
        ({"a": 1}, {"key": {"a": 1.0, "b": -1}}, True),
        ({"a": 1}, {"key": {"a": -1}}, False),
        ({"a": 1}, {"key": {"a": "hashed"}}, False),
        ({"a": 1}, {"key": {"b": 1, "a": 1}}, False),
        ({"a": 1, "b": 1}, {"key": {"a": 1}}, False),
        ({"a": "hashed"}, {"key": {"a": "hashed", "b": 1}}, True),
        ({"a": "hashed"}, {"key": {"a": 1}}, False),
        ({"a": 1}, {"key": {"a": 1}, "sparse": True}, False),
        ({"a": 1}, {"key": {"a": 1}, "hidden": True}, False),
        ({"a": 1}, {"key": {"a": 1}, "partialFilterExpression": {"a": {"$gt": 1}}}, False),
        ({"a": 1}, {"key": {"a": 1}, "collation": {"locale": "en"}}, False),
        ({"a": 1}, {"key": {"a": 1}, "collation": {"locale": "simple"}}, True),
    ],
    ids=str,
)
def test_supporting_indexes(key: dict[str, Any], index: dict[str, Any], supported: bool) -> None:
    assert ShardKeyPattern.from_mapping(key).is_supported_by_index(index) == supported


@pytest.mark.parametrize(
    ("index_key", "compatible"),
    [
        ({"a": 1, "b.c": 1}, True),
        ({"a": -1, "b.c": 1, "d": 1}, True),
        ({"_id": 1}, True),
        ({"a": 1}, False),
        ({"b.c": 1, "a": 1}, False),
    ],
    ids=str,
)
def test_unique_indexes(index_key: dict[str, Any], compatible: bool) -> None:
    assert PAIR.is_unique_index_compatible(index_key) == compatible


@given(st.lists(st.sampled_from("abc"), min_size=1, unique=True))
def test_equal_patterns_are_equal(names: list[str]) -> None:
    pattern = dict.fromkeys(names, 1)
    assert ShardKeyPattern.from_mapping(pattern) == ShardKeyPattern.from_bson(bson.encode(pattern))
    assert len({ShardKeyPattern.from_mapping(pattern), ShardKeyPattern.from_mapping(pattern)}) == 1
