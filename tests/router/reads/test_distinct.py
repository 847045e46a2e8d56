"""Merging distinct values."""

from typing import Any

import bson
import pytest
from bson.decimal128 import Decimal128

from shardwright.router.reads.aggregations import DISTINCT_TOO_BIG, merge_values, merging_aggregate
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import ARRAY, element, from_elements, index


def array(values: list[Any]) -> bytes:
    document = bson.encode({"a": values})
    _, _, start, end = index(document)[b"a"]
    return document[start:end]


def values(raw: bytes) -> list[Any]:
    return list(bson.decode(from_elements(element(b"a", ARRAY, raw)))["a"])


def test_values_come_once_and_in_order() -> None:
    merged = merge_values([array(["b", 3, None]), array([1.0, {"x": 1}, "a"]), array([])])
    assert values(merged) == [None, 1.0, 3, "a", "b", {"x": 1}]


def test_equal_numbers_of_different_types_are_one_value_that_of_the_first_shard() -> None:
    merged = values(merge_values([array([1, Decimal128("2")]), array([1.0, bson.Int64(2)])]))
    assert [str(value) for value in merged] == ["1", "2"]
    assert type(merged[0]) is int


def test_no_values_at_all() -> None:
    assert values(merge_values([array([]), array([])])) == []


def test_more_than_a_document_holds_is_refused() -> None:
    with pytest.raises(CommandError) as refused:
        merge_values([array(["x" * 9_000_000]), array(["y" * 9_000_000])])
    assert refused.value.code == DISTINCT_TOO_BIG


def test_merging_under_a_collation_is_left_to_a_mongod() -> None:
    command = bson.decode(merging_aggregate([array(["a", "$b"]), array(["A"])], {"locale": "en"}, "db"))
    assert command["pipeline"][0] == {
        "$documents": [{"value": {"$literal": "a"}}, {"value": {"$literal": "$b"}}, {"value": {"$literal": "A"}}]
    }
    assert (command["collation"], command["$db"]) == ({"locale": "en"}, "db")
