"""The shapes of operations, which have no values of clients."""

import json
from typing import Any

import bson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.daemon.slow_line import documents_in, query_hash, query_shape, shown_shape
from shardwright.wire.message import OpMsg, op_msg, reply
from shardwright.wire.request import Request


def shape(command: dict[str, Any]) -> dict[str, Any]:
    return query_shape(Request(OpMsg(op_msg(bson.encode({**command, "$db": "d"}), request_id=1))))


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ({"ping": 1}, {"ping": "?"}),
        (
            {"find": "c", "filter": {"a": 5, "b": {"$in": [1, 2, "x"]}}, "sort": {"a": -1}, "limit": 3},
            {"find": "?", "filter": {"a": "?", "b": {"$in": ["?"]}}, "sort": {"a": -1}},
        ),
        ({"count": "c", "query": {"$or": [{"a": 1}, {"a": 2}, {"b": 1}]}}, {
            "count": "?",
            "query": {"$or": [{"a": "?"}, {"b": "?"}]},
        }),
        (
            {"aggregate": "c", "pipeline": [{"$match": {"a": "$1"}}, {"$group": {"_id": "$b", "n": {"$sum": 1}}}]},
            {"aggregate": "?", "pipeline": [{"$match": {"a": "?"}}, {"$group": {"_id": "$b", "n": {"$sum": "?"}}}]},
        ),
        (
            {"aggregate": "c", "pipeline": [{"$set": {"a": {"$literal": "$secret"}}}]},
            {"aggregate": "?", "pipeline": [{"$set": {"a": {"$literal": "?"}}}]},
        ),
        (
            {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"x": "secret"}}}, {"q": {"y": 1}, "u": {}}]},
            {"update": "?", "q": {"_id": "?"}, "u": {"$set": {"x": "?"}}},
        ),
        ({"delete": "c", "deletes": []}, {"delete": "?"}),
        ({"insert": "c", "documents": [{"secret": 1}]}, {"insert": "?"}),
        ({"find": "c", "projection": {"a": 1, "b": "secret"}}, {"find": "?", "projection": {"a": 1, "b": "?"}}),
        ({"update": "c", "updates": 5}, {"update": "?"}),
    ],
)  # fmt: skip
def test_values_are_left_out(command: dict[str, Any], expected: dict[str, Any]) -> None:
    assert shape(command) == expected


values = st.recursive(
    st.text(min_size=1).map(lambda text: f"secret{text}") | st.integers(10**6, 10**9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(("a", "$gt")), inner, max_size=3),
)


@given(st.dictionaries(st.sampled_from(("a", "b", "$and")), values, max_size=3))
def test_no_value_of_a_filter_is_shown(query: dict[str, Any]) -> None:
    for command in ({"find": "c", "filter": query}, {"aggregate": "c", "pipeline": [{"$match": query}]}):
        shown = json.dumps(shape(command))
        assert "secret" not in shown
        assert not any(digit in shown for digit in "0123456789")


def test_the_hash_depends_on_the_shape_alone() -> None:
    first, second = shape({"find": "c", "filter": {"a": 1}}), shape({"find": "c", "filter": {"a": "x"}})
    assert query_hash(first) == query_hash(second)
    assert query_hash(first) != query_hash(shape({"find": "c", "filter": {"b": 1}}))
    assert len(query_hash(first)) == 8


def test_a_long_shape_is_not_shown() -> None:
    assert shown_shape(shape({"find": "c", "filter": {f"f{number}": 1 for number in range(1000)}})) is None


def test_a_deep_filter_has_a_shape() -> None:
    query: dict[str, Any] = {"a": 1}
    for _ in range(60):
        query = {"$nor": [query]}
    assert "secret" not in json.dumps(shape({"find": "c", "filter": query}))


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"cursor": {"firstBatch": [{}, {}], "id": 0, "ns": "d.c"}, "ok": 1}, 2),
        ({"cursor": {"nextBatch": [], "id": 0, "ns": "d.c"}, "ok": 1}, 0),
        ({"n": 3, "nModified": 2, "ok": 1}, 3),
        ({"ok": 1}, None),
        ({"n": "many", "cursor": 5, "ok": 1}, None),
    ],
)
def test_documents_of_a_reply_are_counted(document: dict[str, Any], expected: int | None) -> None:
    assert documents_in(reply(1, bson.encode(document))) == expected
