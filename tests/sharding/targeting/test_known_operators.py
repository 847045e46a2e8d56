"""Unknown operators are found where MongoDB finds them, and known ones are accepted."""

from typing import Any

import bson
import pytest

from shardwright.sharding.targeting.writes import unknown_operator

_TOP = (
    "unknown top level operator: $foo. If you have a field name that starts with a '$' symbol, consider using "
    "$getField or $setField."
)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"$foo": 1}, _TOP),
        ({"a": 1, "$and": [{"b": 1}, {"$foo": 1}]}, _TOP),
        ({"a": {"$foo": 1}}, "unknown operator: $foo"),
        ({"a": {"$gt": 1, "$foo": 1}}, "unknown operator: $foo"),
        ({"$or": [{"a": {"$not": {"$foo": 1}}}]}, "unknown operator: $foo"),
        ({"a": {"$elemMatch": {"$foo": 1}}}, "unknown operator: $foo"),
        ({"a": {"$elemMatch": {"b": {"$foo": 1}}}}, "unknown operator: $foo"),
    ],
)
def test_unknown(query: dict[str, Any], message: str) -> None:
    error = unknown_operator(bson.encode(query))
    assert error is not None
    assert (error.code, error.message) == (2, message)


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"a": 1, "b": {"c": {"$foo": 1}}},
        {"$expr": {"$foo": 1}},
        {"$where": "true"},
        {"$comment": "x", "$nor": [{"a": {"$exists": True, "$mod": [2, 0]}}]},
        {"a": {"$elemMatch": {"$gt": 1}}, "b": {"$regex": "x", "$options": "i"}},
        {"$and": 1},
        {"a": {"$ref": "other", "$id": 1}},
    ],
)
def test_known(query: dict[str, Any]) -> None:
    assert unknown_operator(bson.encode(query)) is None
