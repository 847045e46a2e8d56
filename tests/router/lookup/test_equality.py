"""Documents that an equality of fields may join: too many are handed to the mongod rather than too few."""

from typing import Any

import bson
import pytest
from bson.regex import Regex

from shardwright.router.lookup.lookup import Candidates, WantedValues, has_plain_value, values_at
from shardwright.wire.rawbson import decode_value


def found(document: dict[str, Any], path: str) -> list[Any]:
    """The values at a path, ``"missing"`` where there is none."""
    raw = bson.encode(document)
    return ["missing" if span is None else decode_value(raw, span) for span in values_at(raw, _path(path))]


def _path(text: str) -> list[bytes]:
    return text.encode().split(b".")


@pytest.mark.parametrize(
    ("document", "path", "expected"),
    [
        ({"a": 1}, "a", [1]),
        ({}, "a", ["missing"]),
        ({"a": None}, "a", [None]),
        ({"a": [1, [2]]}, "a", [[1, [2]], 1, [2]]),
        ({"a": []}, "a", [[], "missing"]),
        ({"a": {"b": 1}}, "a.b", [1]),
        ({"a": 1}, "a.b", ["missing"]),
        ({"a": [{"b": 1}, {}, 5, [{"b": 2}]]}, "a.b", [1, "missing", "missing", 2]),
        ({"a": [{"b": 1}, {"b": 2}]}, "a.1.b", [2, "missing", "missing"]),
        ({"a": []}, "a.b", ["missing"]),
    ],
)
def test_values_at_a_path(document: dict[str, Any], path: str, expected: list[Any]) -> None:
    assert found(document, path) == expected


def wanted(*documents: dict[str, Any]) -> dict[str, Any]:
    """Return the filter for documents with one of the values of ``a``."""
    values = WantedValues([b"a"])
    for document in documents:
        values.add(bson.encode(document))
    return bson.decode(values.filter(b"x.y"))


def test_equal_values_are_looked_for_once() -> None:
    documents: list[dict[str, Any]] = [{"a": 1}, {"a": 1.0}, {"a": [bson.Int64(1), "s"]}, {}, {"a": None}]
    assert wanted(*documents) == {"x.y": {"$in": [1, [1, "s"], "s", None]}}


def test_a_regular_expression_matches_no_strings() -> None:
    expression = Regex("^a", "i")
    assert wanted({"a": expression}, {"a": 2}) == {"$or": [{"x.y": {"$in": [2]}}, {"x.y": {"$eq": expression}}]}


@pytest.mark.parametrize(
    ("local", "is_collated", "expected"),
    [
        ({"a": 1}, False, [0, 1, 5]),
        ({"a": "x"}, False, [2]),
        ({"a": "x"}, True, [2, 3, 5]),
        ({}, False, [4]),
        ({"a": None}, False, [4]),
        ({"a": ["x", 1]}, False, [0, 1, 2, 5]),
        ({"a": 7}, False, []),
    ],
)
def test_candidates(local: dict[str, Any], is_collated: bool, expected: list[int]) -> None:
    values: list[dict[str, Any]] = [{"b": 1}, {"b": 1.0}, {"b": "x"}, {"b": "X"}, {}, {"b": [5, bson.Int64(1)]}]
    documents = [bson.encode({"_id": number, **each}) for number, each in enumerate(values)]
    candidates = Candidates(documents, [b"b"], is_collated=is_collated)
    assert [bson.decode(each)["_id"] for each in candidates.of(bson.encode(local), [b"a"])] == expected


@pytest.mark.parametrize(
    ("document", "path", "is_plain"),
    [
        ({"a": 1}, "a", True),
        ({"a": "x"}, "a", True),
        ({"a": None}, "a", False),
        ({}, "a", False),
        ({"a": [1]}, "a", False),
        ({"a": {"b": 1}}, "a", False),
        ({"a": Regex("x")}, "a", False),
        ({"a": {"b": 1}}, "a.b", False),
    ],
)
def test_plain_values_leave_nothing_to_compare(document: dict[str, Any], path: str, is_plain: bool) -> None:
    assert has_plain_value(bson.encode(document), _path(path)) is is_plain
