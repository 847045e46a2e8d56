"""Hypothesis strategies for documents and filters that often have to do with each other.

Few paths and few values, so that random filters match random documents.
"""

import datetime
from typing import Any

from bson.code import Code
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.regex import Regex
from bson.timestamp import Timestamp
from hypothesis import strategies as st

PATTERNS = (
    {"a": 1},
    {"a": "hashed"},
    {"a.b": 1},
    {"a.b": "hashed"},
    {"a": 1, "c": 1},
    {"a": 1, "c": "hashed"},
    {"a": "hashed", "c": 1},
    {"a.b": 1, "a.d": 1},
    {"c": 1, "a.b": 1, "d": 1},
    {"a": 1, "a.b": 1},
    {"_id": 1},
    {"_id": "hashed"},
)

PATHS = ("a", "c", "d", "a.b", "a.d", "a.b.x", "_id", "z", "a.0")

VALUES = (
    *(None, 0, -0.0, 1, 1.0, Int64(1), Decimal128("1"), 2, 1.5, Decimal128("1.5"), 2.5, -1, 7),
    *(float("nan"), float("inf"), float("-inf"), 2.0**63, Decimal128(str(2**63)), Int64(2**63 - 1), Decimal128("NaN")),
    *("", "a", "A", "b", "a\0b", True, False, MinKey(), MaxKey(), Timestamp(1, 1), Code("f"), b"x"),
    *(ObjectId(b"\0" * 12), ObjectId(b"\1" * 12), datetime.datetime(2020, 1, 1), datetime.datetime(1960, 1, 1)),
)

scalars = st.sampled_from(VALUES)

_objects = st.dictionaries(st.sampled_from(["b", "d", "x"]), scalars, max_size=2)

values = st.one_of(scalars, _objects, st.builds(lambda inner: {"b": inner}, _objects))

documents = st.fixed_dictionaries(
    {},
    optional={
        "a": values | st.fixed_dictionaries({"b": scalars}, optional={"d": scalars}) | st.just([1]),
        "c": scalars | st.just(Regex("a")),
        "d": scalars,
        "z": scalars | st.lists(scalars, max_size=2),
    },
)

_operands = values | st.lists(scalars, max_size=2)

_operators: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.dictionaries(st.sampled_from(["$eq", "$gt", "$gte", "$lt", "$lte", "$ne"]), _operands, min_size=1, max_size=2),
    st.dictionaries(st.sampled_from(["$gt", "$gte", "$lt", "$lte"]), scalars, min_size=1, max_size=2),
    st.builds(
        lambda operator, operands: {operator: operands},
        st.sampled_from(["$in", "$nin", "$all"]),
        st.lists(_operands | st.just(Regex("^a")), max_size=4),
    ),
    st.builds(lambda exists: {"$exists": exists}, st.booleans()),
    st.sampled_from(
        [{"$type": "number"}, {"$mod": [2, 1]}, {"$regex": "^a"}, {"$size": 1}, {"$elemMatch": {"$gt": 0}}]
    ),
)


def _nested(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    branches = st.lists(inner, min_size=1, max_size=3)
    logical = st.builds(
        lambda operator, filters: {operator: filters}, st.sampled_from(["$and", "$or", "$nor"]), branches
    )
    return st.one_of(logical, st.builds(lambda one, other: {**one, **other}, inner, logical))


_predicates = st.one_of(
    values, st.just(Regex("a")), st.just([1]), _operators, _operators.map(lambda operators: {"$not": operators})
)

filters: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.one_of(
        st.dictionaries(st.sampled_from(PATHS), _predicates, min_size=1, max_size=3),
        st.builds(lambda value: {"$expr": {"$eq": ["$a", {"$literal": value}]}}, scalars),
    ),
    _nested,
    max_leaves=4,
)
