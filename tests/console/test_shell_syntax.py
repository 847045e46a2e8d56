"""Commands as people paste them."""

from datetime import UTC, datetime
from typing import Any

import pytest
from bson import Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp

from shardwright.console.shell_syntax import DEPTH_MAX, SyntaxFault, document, parsed, shell_text, short_text


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("db.orders.find({ customer: 42 })", {"find": "orders", "filter": {"customer": 42}}),
        ("db.orders.find()", {"find": "orders", "filter": {}}),
        (
            "db.orders.find({a: 1}, {_id: 0}).sort({b: -1}).limit(5);",
            {"find": "orders", "filter": {"a": 1}, "projection": {"_id": 0}, "sort": {"b": -1}, "limit": 5},
        ),
        ("db.orders.findOne({a: 'x'})", {"find": "orders", "filter": {"a": "x"}, "limit": 1}),
        (
            'db.getSiblingDB("shop").getCollection("a b").aggregate([{ $match: { x: { $gt: 1.5 } } },])',
            {"aggregate": "a b", "pipeline": [{"$match": {"x": {"$gt": 1.5}}}], "cursor": {}},
        ),
        ('db["odd-name"].countDocuments({})', {"count": "odd-name", "query": {}}),
        ("db.a.b.distinct('k', {x: null})", {"distinct": "a.b", "key": "k", "query": {"x": None}}),
        (
            "db.c.updateMany({a: 1}, {$set: {b: 2}})",
            {"update": "c", "updates": [{"q": {"a": 1}, "u": {"$set": {"b": 2}}, "multi": True, "upsert": False}]},
        ),
        ("db.c.deleteOne({a: 1})", {"delete": "c", "deletes": [{"q": {"a": 1}, "limit": 1}]}),
        ("db.c.explain().find({a: 1})", {"find": "c", "filter": {"a": 1}}),
        ("{ find: 'c', filter: { /* all */ } } // done", {"find": "c", "filter": {}}),
        ("db.runCommand({ count: 'c' })", {"count": "c"}),
    ],
)
def test_commands(text: str, command: dict[str, Any]) -> None:
    assert parsed(text, "test").command == command


def test_the_database() -> None:
    assert parsed("db.c.find()", "shop").db == "shop"
    assert parsed("db.getSiblingDB('x').c.find()", "shop").db == "x"
    assert parsed('{ "find": "c", "$db": "y" }', "shop").db == "y"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('ObjectId("65f000000000000000000001")', ObjectId("65f000000000000000000001")),
        ('{"$oid": "65f000000000000000000001"}', ObjectId("65f000000000000000000001")),
        ('ISODate("2026-01-02T03:04:05Z")', datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ('new Date("2026-01-02")', datetime(2026, 1, 2, tzinfo=UTC)),
        ('NumberLong("9007199254740993")', Int64(9007199254740993)),
        ("-12", -12),
        ("1e3", 1000.0),
        ("0x10", 16),
        ("MinKey", MinKey()),
        ("MaxKey()", MaxKey()),
        ("Timestamp(5, 6)", Timestamp(5, 6)),
        ("/^a.b/i", Regex("^a.b", "i")),
        ("[1, 'two', true, null]", [1, "two", True, None]),
        (r"'it\'s \u00e9'", "it's é"),
    ],
)
def test_values(text: str, value: object) -> None:
    assert document(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "db.c",
        "db.find()",
        "db.c.mapReduce()",
        "db.c.find({a: })",
        "db.c.find({a: 1}",
        "db.c.find({a: f(1)})",
        "db.c.find({a: ObjectId('x')})",
        "db.c.find({a: 1}) + 1",
        "process.exit()",
        "{}",
        "@",
        "[" * (DEPTH_MAX + 2),
        "x" * 200_000,
    ],
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(SyntaxFault):
        parsed(text, "test")


@pytest.mark.parametrize(
    "value",
    [
        {"a": MinKey(), "b.c": [1, 2.5, "x"]},
        Int64(5),
        ObjectId(),
        {"$date": 1},
        Timestamp(1, 2),
        True,
        None,
        "é\n",
        float("inf"),
        -float("inf"),
        Regex('a"/b', "imsx"),
        Regex("a"),
    ],
)
def test_what_is_shown_can_be_read_again(value: Any) -> None:  # noqa: ANN401 - any value
    if isinstance(value, dict) and "$date" in value:
        value = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
    assert document(shell_text(value)) == value


def test_what_is_not_a_number_is_shown_as_in_mongosh() -> None:
    assert shell_text([float("nan"), float("inf"), -float("inf")]) == "[NaN, Infinity, -Infinity]"


def test_bounds_are_short() -> None:
    assert short_text({"a": MinKey(), "b": "x"}) == 'min, "x"'
    assert len(short_text({"a": "y" * 200}, 20)) == 20
