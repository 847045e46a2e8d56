"""An operation's collation, and the targeting that it allows."""

from typing import Any

import bson
import pytest

from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.targeting.values import effective, is_collection_default, is_simple, uncollated_field

ENGLISH_AS_STORED = {
    "locale": "en",
    "caseLevel": False,
    "caseFirst": "off",
    "strength": 3,
    "numericOrdering": False,
    "alternate": "non-ignorable",
    "maxVariable": "punct",
    "normalization": False,
    "backwards": False,
    "version": "57.1",
}


@pytest.mark.parametrize(
    ("operation", "default", "simple", "same"),
    [
        (None, None, True, True),
        ({}, None, True, True),
        ({"locale": "simple"}, None, True, True),
        (None, ENGLISH_AS_STORED, False, True),
        ({"locale": "simple"}, ENGLISH_AS_STORED, True, False),
        ({"locale": "en"}, ENGLISH_AS_STORED, False, True),
        ({"locale": "en", "strength": 2}, ENGLISH_AS_STORED, False, False),
        ({"locale": "en"}, None, False, False),
    ],
)
def test_effective_collation(
    operation: dict[str, Any] | None, default: dict[str, Any] | None, simple: bool, same: bool
) -> None:
    assert is_simple(effective(operation, default)) == simple
    assert is_collection_default(operation, default) == same


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ({"a": 1, "b": 2}, None),
        ({"a": "x", "b": 2}, "a"),
        ({"a": 1, "b": {"x": 1}}, "b"),
        ({"a": None, "b": True}, None),
    ],
)
def test_fields_that_depend_on_collation(key: dict[str, Any], expected: str | None) -> None:
    assert uncollated_field(ShardKeyPattern.from_mapping({"a": 1, "b": 1}), bson.encode(key)) == expected


def test_hashed_field_always_depends_on_collation() -> None:
    pattern = ShardKeyPattern.from_mapping({"a": "hashed"})
    assert uncollated_field(pattern, pattern.extract_from_document(bson.encode({"a": 1}))) == "a"
