"""Statements are parsed as by MongoDB; every expected error is one of mongod 6.0.5."""

from collections.abc import Mapping
from typing import Any

import bson
import pytest
from bson.decimal128 import Decimal128
from bson.int64 import Int64

from shardwright.sharding.targeting.statements import DeleteStatement, UpdateStatement, UpdateStyle
from shardwright.wire.errors import CommandError

SET = {"$set": {"x": 1}}


@pytest.mark.parametrize(
    ("update", "style"),
    [
        (SET, UpdateStyle.OPERATORS),
        ({"$set": {"x": 1}, "$inc": {"y": 1}}, UpdateStyle.OPERATORS),
        ({"x": 1}, UpdateStyle.REPLACEMENT),
        ({}, UpdateStyle.REPLACEMENT),
        ([], UpdateStyle.PIPELINE),
        ([SET], UpdateStyle.PIPELINE),
        ({"$set": {"x": 1}, "y": 1}, UpdateStyle.MIXED),
        ({"y": 1, "$set": {"x": 1}}, UpdateStyle.MIXED),
    ],
)
def test_update_style(update: object, style: UpdateStyle) -> None:
    assert UpdateStatement(bson.encode({"q": {}, "u": update})).style is style


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"q": None}, 40414, "BSON field 'update.updates.q' is missing but a required field"),
        ({"q": 1}, 14, "BSON field 'update.updates.q' is the wrong type 'int', expected type 'object'"),
        ({"u": 1}, 9, "Update argument must be either an object or an array"),
        ({"u": [1]}, 14, "Each element of the 'pipeline' array must be an object"),
        ({"multi": 1}, 14, "BSON field 'update.updates.multi' is the wrong type 'int', expected type 'bool'"),
        ({"upsert": "a"}, 14, "BSON field 'update.updates.upsert' is the wrong type 'string', expected type 'bool'"),
        ({"collation": 1}, 14, "BSON field 'update.updates.collation' is the wrong type 'int', expected type 'object'"),
        (
            {"arrayFilters": 1},
            14,
            "BSON field 'update.updates.arrayFilters' is the wrong type 'int', expected type 'array'",
        ),
        ({"hint": 1}, 9, "Hint must be a string or an object"),
        ({"hint": None}, 9, "Hint must be a string or an object"),
        ({"foo": 1}, 40415, "BSON field 'update.updates.foo' is an unknown field."),
    ],
)
def test_update_malformed(changes: Mapping[str, Any], code: int, message: str) -> None:
    with pytest.raises(CommandError) as raised:
        UpdateStatement(bson.encode({"q": {}, "u": SET, **changes}))
    assert (raised.value.code, raised.value.message) == (code, message)


def test_update_without_u() -> None:
    with pytest.raises(CommandError, match=r"'update\.updates\.u' is missing"):
        UpdateStatement(bson.encode({"q": {}}))


def test_update_field_twice() -> None:
    twice = bson.encode({"q": {}, "u": SET})[4:-1] + bson.encode({"q": {}})[4:-1]
    document = (len(twice) + 5).to_bytes(4, "little") + twice + b"\0"
    with pytest.raises(CommandError) as raised:
        UpdateStatement(document)
    assert raised.value.code == 40413


def test_update_null_options_count_as_absent() -> None:
    update = UpdateStatement(
        bson.encode({"q": {"k": 1}, "u": SET, "multi": None, "upsert": None, "collation": None, "arrayFilters": None})
    )
    assert (update.is_multi, update.is_upsert, update.collation) == (False, False, None)


def test_update_is_shown_as_mongodb_shows_it() -> None:
    update = UpdateStatement(
        bson.encode({"upsert": True, "hint": "a_1", "u": [SET], "q": {"a": "b"}, "collation": {"locale": "fr"}})
    )
    assert str(update) == (
        '{ q: { a: "b" }, u: [ { $set: { x: 1 } } ], hint: { $hint: "a_1" }, multi: false, upsert: true, '
        'collation: { locale: "fr" } }'
    )


@pytest.mark.parametrize(
    ("limit", "is_single"),
    [
        (1, True),
        (0, False),
        (Int64(1), True),
        (1.0, True),
        (1.9, True),
        (Decimal128("1"), True),
        (float("nan"), False),
        (True, False),
        (None, False),
        ("a", False),
    ],
)
def test_delete_limit(limit: object, is_single: bool) -> None:
    assert DeleteStatement(bson.encode({"q": {}, "limit": limit})).is_single is is_single


@pytest.mark.parametrize(
    ("statement", "code", "message"),
    [
        ({"q": {}}, 40414, "BSON field 'delete.deletes.limit' is missing but a required field"),
        ({"limit": 1}, 40414, "BSON field 'delete.deletes.q' is missing but a required field"),
        ({"q": {}, "limit": 2}, 9, "The limit field in delete objects must be 0 or 1. Got 2"),
        ({"q": {}, "limit": -1}, 9, "The limit field in delete objects must be 0 or 1. Got -1"),
        ({"q": {}, "limit": 1, "multi": True}, 40415, "BSON field 'delete.deletes.multi' is an unknown field."),
    ],
)
def test_delete_malformed(statement: Mapping[str, Any], code: int, message: str) -> None:
    with pytest.raises(CommandError) as raised:
        DeleteStatement(bson.encode(statement))
    assert (raised.value.code, raised.value.message) == (code, message)


@pytest.mark.parametrize("limit", [float("inf"), Decimal128("Infinity"), Decimal128("1E+6000")])
def test_delete_limit_beyond_all_integers(limit: object) -> None:
    with pytest.raises(CommandError, match="must be 0 or 1"):
        DeleteStatement(bson.encode({"q": {}, "limit": limit}))
