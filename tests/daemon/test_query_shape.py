"""The shapes of operations, which have no values of clients."""

import json
from datetime import UTC, datetime
from random import Random
from typing import Any

import bson
import pytest
from bson import Code, Decimal128, ObjectId, Regex
from hypothesis import example, given
from hypothesis import strategies as st

from shardwright.daemon.query_shape import (
    documents_in,
    free_of_shape,
    query_hash,
    query_shape,
    shape_of_arguments,
    shaping_arguments,
    shown_shape,
)
from shardwright.wire.message import OpMsg, op_msg, reply
from shardwright.wire.rawbson import OBJECT, STRING, append, element, from_elements, string_value
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
        (
            {"update": "c", "updates": [{"u": {"$set": {"x": "$secret"}}, "q": {"_id": "$secret"}}]},
            {"update": "?", "q": {"_id": "?"}, "u": {"$set": {"x": "?"}}},
        ),
        (
            {"update": "c", "updates": [{"q": {}, "u": [{"$set": {"x": "$path", "y": "secret"}}]}]},
            {"update": "?", "q": {}, "u": [{"$set": {"x": "$path", "y": "?"}}]},
        ),
        (
            {"findAndModify": "c", "query": {"a": 1}, "update": {"b": "$secret"}, "sort": {"a": 1}},
            {"findAndModify": "?", "query": {"a": "?"}, "update": {"b": "?"}, "sort": {"a": 1}},
        ),
        ({"delete": "c", "deletes": []}, {"delete": "?"}),
        ({"insert": "c", "documents": [{"secret": 1}]}, {"insert": "?"}),
        ({"find": "c", "projection": {"a": 1, "b": "secret"}}, {"find": "?", "projection": {"a": 1, "b": "?"}}),
        (
            {"find": "c", "projection": {"a": {"$elemMatch": {"b": 7, "c": "$secret"}}, "d.e": 0, "f": {"g": 1}}},
            {"find": "?", "projection": {"a": {"$elemMatch": {"b": "?", "c": "?"}}, "d.e": 0, "f": {"g": 1}}},
        ),
        (
            {"find": "c", "projection": {"a": {"$add": ["$b", 7]}, "b": {"$slice": 7}, "c": ["$d", 7]}},
            {"find": "?", "projection": {"a": {"$add": ["$b", "?"]}, "b": {"$slice": "?"}, "c": ["$d", "?"]}},
        ),
        (
            {"aggregate": "c", "pipeline": [{"$graphLookup": {"restrictSearchWithMatch": {"a": "$secret"}}}]},
            {"aggregate": "?", "pipeline": [{"$graphLookup": {"restrictSearchWithMatch": {"a": "?"}}}]},
        ),
        ({"find": "c", "sort": {"$natural": -1}, "hint": {"$natural": 1}}, {
            "find": "?",
            "sort": {"$natural": -1},
            "hint": {"$natural": 1},
        }),
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


scalars = st.one_of(
    st.text(max_size=3),
    st.sampled_from(["$a", "$$ROOT", "", "x"]),
    st.integers(-(2**31), 2**40),
    st.floats(allow_nan=False),
    st.booleans(),
    st.none(),
    st.binary(max_size=3),
    st.sampled_from([Regex("a"), ObjectId(bytes(12)), datetime(2024, 1, 1, tzinfo=UTC), Decimal128("1"), Code("a")]),
)
names = st.sampled_from(["a", "$match", "$literal", "query", "$in", "$set", "$elemMatch"])
parts = scalars | st.lists(scalars, max_size=2) | st.dictionaries(names, scalars, max_size=2)
documents = st.dictionaries(names, parts | st.lists(parts, max_size=2), max_size=2)
lists = st.lists(documents, max_size=2)
statements = st.fixed_dictionaries(
    {"q": documents}, optional={"u": documents | lists, "multi": scalars, "hint": documents}
)


def named(command: str, **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A command with some of its arguments."""
    return st.fixed_dictionaries({}, optional=arguments).map(lambda given: {command: "c", **given})


commands = st.one_of(
    named("find", filter=documents, sort=documents, hint=scalars, limit=scalars, projection=documents),
    named("aggregate", pipeline=lists),
    named("findAndModify", query=documents, update=documents | lists),
    statements.map(lambda statement: {"update": "c", "updates": [statement]}),
)


@given(commands, st.integers(0, 2**32).map(Random))
@example({"aggregate": "c", "pipeline": [{"$set": {"a": ""}}]}, Random(0))
@example({"find": "c", "hint": ""}, Random(0))
@example(
    {"find": "c", "projection": {"a": {"$elemMatch": {"b": 7}}, "b": ["$x", 7], "c": {"$add": [1, "$x"]}}}, Random(0)
)
def test_free_bytes_do_not_change_the_shape(command: dict[str, Any], random: Random) -> None:
    name = next(each for each in ("find", "aggregate", "findAndModify", "update") if command.get(each) == "c")
    document = {name: "c", **command, "$db": "d"}  # generated documents have any order
    request = Request(OpMsg(op_msg(bson.encode(document), request_id=1)))
    arguments = shaping_arguments(request)
    changed = bytearray(arguments)
    for start, end in free_of_shape(request.name, arguments):
        assert start <= end
        changed[start:end] = random.randbytes(end - start)
    assert shape_of_arguments(request.name, bytes(changed)) == query_shape(request)


def test_the_values_of_a_filter_are_free() -> None:
    query = {"a": 1, "b": "text", "c": {"$in": [ObjectId(), ObjectId()]}, "d": b"data"}
    arguments = shaping_arguments(
        Request(OpMsg(op_msg(bson.encode({"find": "c", "filter": query, "$db": "d"}), request_id=1)))
    )
    assert sum(end - start for start, end in free_of_shape("find", arguments)) == 4 + 4 + 12 + 12 + 4


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


@pytest.mark.parametrize("levels", [300, 1_000, 5_000])
def test_a_filter_nested_too_deep_has_the_shape_of_its_command(levels: int) -> None:
    query = bson.encode({})
    for _ in range(levels):
        query = from_elements(element(b"", OBJECT, query))
    body = from_elements(element(b"find", STRING, string_value("c")) + element(b"filter", OBJECT, query))
    request = Request(OpMsg(op_msg(append(body, element(b"$db", STRING, string_value("d"))), request_id=1)))
    assert query_shape(request) == {"find": "?"}


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
