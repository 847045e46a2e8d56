"""Targets of statements: a golden table per command.

Three shards: ``west`` owns keys below 0, ``east`` those from 0 to 100, ``north`` the rest. Every refusal was compared
with the routing code of mongod 6.0.5 (its ``clusterUpdate`` and ``clusterDelete``).
"""

from collections.abc import Mapping
from typing import Any

import bson
import pytest
from bson.max_key import MaxKey
from bson.objectid import ObjectId
from bson.regex import Regex

from shardwright.router.writes.batch import WriteKind
from shardwright.router.writes.targeted_batch import target_batch
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.targeting.statements import DeleteStatement, UpdateStatement
from shardwright.sharding.targeting.writes import (
    ALL_SHARDS,
    target_delete,
    target_find_and_modify,
    target_update,
)
from shardwright.wire.errors import CommandError
from tests.router.writes.builders import batch, table

SHARDS = ("west", "east", "north")
BY_K = table({"k": 1}, [{"k": 0}, {"k": 100}], SHARDS)
BY_K_AND_J = table({"k": 1, "j": 1}, [{"k": 0}, {"k": 100}], SHARDS)
BY_ID = table({"_id": 1}, [{"_id": 0}, {"_id": 100}], SHARDS)
BY_ID_AND_K = table({"_id": 1, "k": 1}, [{"_id": 0}, {"_id": 100}], SHARDS)
BY_K_AND_ID = table({"k": 1, "_id": 1}, [{"k": 0}, {"k": 50, "_id": 0}], SHARDS)
BY_NESTED = table({"a.b": 1}, [{"a.b": 0}, {"a.b": 100}], SHARDS)
BY_HASH = table({"k": "hashed"}, [{"k": bson.Int64(0)}, {"k": bson.Int64(1 << 62)}], SHARDS)
FRENCH = {"locale": "fr"}
COLLATED = table({"k": 1}, [{"k": 0}, {"k": 100}], SHARDS, FRENCH)

SET = {"$set": {"x": 1}}

_SINGLE_UPDATE = (
    "A {multi:false} update on a sharded collection must contain an exact match on _id (and have the collection "
    "default collation) or target a single shard (and have the simple collation), but this update targeted "
)
_SINGLE_DELETE = (
    "A single delete on a sharded collection must contain an exact match on _id (and have the collection default "
    "collation) or contain the shard key (and have the simple collation). Delete request: "
)
_UPSERT = "Failed to target upsert by query"
_REPLACEMENT = "Failed to target update by replacement document"
_NO_KEY = "could not extract exact shard key"
_COLLATED = "caused by :: Cannot target single shard due to collation of key k for namespace shop.orders"

_NO_CHUNK = "Cannot target single shard using key { k: MaxKey } for namespace shop.orders"

INSERTS: list[tuple[RoutingTable, dict[str, Any], Any]] = [
    (BY_K, {"k": -1}, "west"),
    (BY_K, {"k": 0}, "east"),
    (BY_K, {"k": 1e9}, "north"),
    (BY_K, {}, "west"),
    (BY_K, {"k": "text"}, "north"),
    (BY_K, {"k": [1]}, (61, "Shard key cannot contain array values or array descendants.")),
    (BY_K_AND_J, {"j": [1], "k": 1}, (61, "Shard key cannot contain array values or array descendants.")),
    (BY_NESTED, {"a": {"b": 5}}, "east"),
    (BY_NESTED, {"a": [{"b": 5}]}, (61, "Shard key cannot contain array values or array descendants.")),
    (COLLATED, {"k": "text"}, "north"),
    (BY_K, {"k": MaxKey()}, (61, _NO_CHUNK)),
]

UPDATES: list[tuple[RoutingTable, dict[str, Any], Any]] = [
    # by the filter
    (BY_K, {"q": {"k": 5}, "u": SET}, "east"),
    (BY_K, {"q": {"k": {"$gt": 100}}, "u": SET}, "north"),
    (BY_K, {"q": {"k": {"$in": [1, 2]}}, "u": SET}, "east"),
    (BY_K, {"q": {"k": None}, "u": SET}, "west"),
    (BY_K, {"q": {"k": 5}, "u": [SET]}, "east"),
    (BY_K_AND_J, {"q": {"k": 5}, "u": SET}, "east"),
    # all matches, on any shard
    (BY_K, {"q": {}, "u": SET, "multi": True}, ALL_SHARDS),
    (BY_K, {"q": {"k": {"$gte": 0}}, "u": SET, "multi": True}, ALL_SHARDS),
    (BY_K, {"q": {"k": {"$lt": 0}}, "u": SET, "multi": True}, "west"),
    (BY_K, {"q": {}, "u": [SET], "multi": True}, ALL_SHARDS),
    # one match, which must be on a single shard
    (BY_K, {"q": {"_id": 1}, "u": SET}, ALL_SHARDS),
    (BY_K, {"q": {"_id": {"$in": [1]}}, "u": SET}, ALL_SHARDS),
    (BY_K, {"q": {"_id": {"$gt": 1}}, "u": SET}, (72, _SINGLE_UPDATE)),
    (
        BY_K,
        {"q": {}, "u": SET},
        (
            72,
            _SINGLE_UPDATE + "3 shards. Update request: { q: {}, u: { $set: { x: 1 } }, multi: false, upsert: false }, "
            "shard key pattern: { k: 1 }",
        ),
    ),
    (
        BY_K,
        {"q": {}, "u": [SET], "hint": "_id_", "collation": {"locale": "simple"}, "arrayFilters": [], "c": {"a": 1}},
        (
            72,
            _SINGLE_UPDATE + "3 shards. Update request: { q: {}, u: [ { $set: { x: 1 } } ], c: { a: 1 }, "
            'arrayFilters: [], hint: { $hint: "_id_" }, multi: false, upsert: false, '
            'collation: { locale: "simple" } }, shard key pattern: { k: 1 }',
        ),
    ),
    (BY_HASH, {"q": {"k": {"$gt": 5}}, "u": SET}, (72, _SINGLE_UPDATE)),
    # upserts by the exact key in the filter
    (BY_K, {"q": {"k": 5}, "u": SET, "upsert": True}, "east"),
    (BY_K, {"q": {"k": {"$in": [5]}}, "u": SET, "upsert": True}, "east"),
    (BY_K, {"q": {"$or": [{"k": 5}]}, "u": SET, "upsert": True}, "east"),
    (BY_K, {"q": {"k": {"$gt": 100}}, "u": SET, "upsert": True}, (61, f"{_UPSERT} :: {_NO_KEY}")),
    (BY_K, {"q": {"x": 1}, "u": {"k": 5}, "upsert": True}, (61, f"{_UPSERT} :: {_NO_KEY}")),
    (BY_K, {"q": {"k": Regex("a")}, "u": SET, "upsert": True}, (61, f"{_UPSERT} :: {_NO_KEY}")),
    (BY_K, {"q": {}, "u": SET, "upsert": True, "multi": True}, (61, f"{_UPSERT} :: {_NO_KEY}")),
    (BY_K_AND_J, {"q": {"k": 5}, "u": SET, "upsert": True}, (61, f"{_UPSERT} :: {_NO_KEY}")),
    (BY_K, {"q": {"k": MaxKey()}, "u": SET, "upsert": True}, (61, f"{_UPSERT} :: caused by :: {_NO_CHUNK}")),
    # replacements by the filter, or else by the replacement document
    (BY_K, {"q": {"k": 5}, "u": {"k": 5, "x": 1}}, "east"),
    (BY_K, {"q": {"_id": 1}, "u": {"k": 5, "x": 1}}, "east"),
    (BY_K, {"q": {"x": 1}, "u": {"x": 2}}, "west"),
    (BY_K, {"q": {}, "u": {}}, "west"),
    (BY_K, {"q": {}, "u": {"k": [1]}}, (61, f"{_REPLACEMENT} :: {_NO_KEY}")),
    (BY_ID_AND_K, {"q": {"k": 1, "_id": {"$in": [5]}}, "u": {"k": 1}}, "east"),
    (BY_K_AND_ID, {"q": {"_id": 5}, "u": {"k": 50}}, "north"),
    (BY_K_AND_ID, {"q": {"_id": -5}, "u": {"k": 50}}, "east"),
    # malformed ones
    (BY_K, {"q": {"k": 5}, "u": {"x": 1}, "multi": True}, (72, "Replacement-style updates cannot be {multi:true}")),
    (
        BY_K,
        {"q": {"k": 5}, "u": {"$set": {"x": 1}, "y": 1}},
        (12, "update document { $set: { x: 1 }, y: 1 } has mixed $operator and non-$operator style fields"),
    ),
    (BY_K, {"q": {"x": {"$foo": 1}}, "u": SET}, (2, "unknown operator: $foo")),
    (BY_K, {"q": {"$foo": 1}, "u": SET, "upsert": True}, (2, f"{_UPSERT} :: caused by :: unknown top level operator")),
    # collations
    (BY_K, {"q": {"k": 5}, "u": SET, "collation": FRENCH}, "east"),
    (BY_K, {"q": {"k": "a"}, "u": SET, "upsert": True, "collation": FRENCH}, (61, f"{_UPSERT} :: {_COLLATED}")),
    (BY_K, {"q": {"_id": "a"}, "u": SET, "collation": FRENCH}, (72, _SINGLE_UPDATE)),
    (BY_K, {"q": {"_id": 1}, "u": SET, "collation": FRENCH}, ALL_SHARDS),
    (COLLATED, {"q": {"_id": "a"}, "u": SET}, ALL_SHARDS),
    (COLLATED, {"q": {"k": "a"}, "u": SET, "upsert": True}, (61, f"{_UPSERT} :: {_COLLATED}")),
    (COLLATED, {"q": {"k": "a"}, "u": SET, "upsert": True, "collation": {"locale": "simple"}}, "north"),
]

DELETES: list[tuple[RoutingTable, dict[str, Any], Any]] = [
    (BY_K, {"q": {"k": 5}, "limit": 1}, "east"),
    (BY_K, {"q": {"k": 5, "x": {"$gt": 1}}, "limit": 0}, "east"),
    (BY_K, {"q": {"_id": 5}, "limit": 1}, ALL_SHARDS),
    (BY_K, {"q": {}, "limit": 0}, ALL_SHARDS),
    (BY_K, {"q": {"k": {"$lt": 0}}, "limit": 0}, "west"),
    (
        BY_K,
        {"q": {"k": {"$lt": 0}}, "limit": 1},
        (61, _SINGLE_DELETE + "{ q: { k: { $lt: 0 } }, limit: 1 }, shard key pattern: { k: 1 }"),
    ),
    (
        BY_K,
        {"q": {}, "limit": 1, "collation": FRENCH, "hint": {"_id": 1}},
        (61, _SINGLE_DELETE + '{ q: {}, limit: 1, hint: { _id: 1 }, collation: { locale: "fr" } }'),
    ),
    (BY_K, {"q": {"k": MaxKey()}, "limit": 1}, (61, _SINGLE_DELETE)),
    (BY_K, {"q": {"k": MaxKey()}, "limit": 0}, "north"),
    (BY_K, {"q": {"k": "a"}, "limit": 1, "collation": FRENCH}, (61, _SINGLE_DELETE)),
    (BY_K, {"q": {"k": {"$foo": 1}}, "limit": 1}, (2, "unknown operator: $foo")),
    (COLLATED, {"q": {"k": "a"}, "limit": 1}, (61, _SINGLE_DELETE)),
    (COLLATED, {"q": {"_id": "a"}, "limit": 1}, ALL_SHARDS),
    (COLLATED, {"q": {"k": 5}, "limit": 1}, "east"),
    (BY_K_AND_J, {"q": {"k": 5}, "limit": 1}, (61, _SINGLE_DELETE)),
    (BY_K_AND_J, {"q": {"k": 5, "j": 1}, "limit": 1}, "east"),
]

_NO_QUERY_KEY = (61, "Query for sharded findAndModify must contain the shard key")

FIND_AND_MODIFIES: list[tuple[RoutingTable, dict[str, Any], Any, Any]] = [
    (BY_K, {"k": 5}, None, "east"),
    (BY_K, {"k": {"$eq": 500}}, None, "north"),
    (BY_K, {}, None, _NO_QUERY_KEY),
    (BY_K, {"_id": 5}, None, _NO_QUERY_KEY),
    (BY_K, {"k": {"$gt": 500}}, None, _NO_QUERY_KEY),
    (BY_K, {"k": {"$foo": 1}}, None, (2, "unknown operator: $foo")),
    (BY_K, {"$foo": 1}, None, (2, "unknown top level operator: $foo.")),
    (BY_K, {"k": MaxKey()}, None, (61, _NO_CHUNK)),
    (BY_K, {"k": "a"}, FRENCH, (61, "Cannot target single shard due to collation of key k for namespace shop.orders")),
    (COLLATED, {"k": "a"}, {"locale": "simple"}, "north"),
]


def assert_destination(found: object, expected: object) -> None:
    """Compare a destination with one of the tables: an error by its code and the beginning of its message."""
    if isinstance(expected, tuple):
        assert isinstance(found, CommandError)
        assert found.code == expected[0]
        assert found.message.startswith(expected[1])
    else:
        assert found == expected


@pytest.mark.parametrize(("routing", "document", "expected"), INSERTS)
def test_insert(routing: RoutingTable, document: Mapping[str, Any], expected: object) -> None:
    found = target_batch(batch(WriteKind.INSERT, [document]), routing, "primary")
    assert_destination(found.by_statement[0], expected)
    assert found.has_errors == isinstance(expected, tuple)


@pytest.mark.parametrize(("routing", "statement", "expected"), UPDATES)
def test_update(routing: RoutingTable, statement: Mapping[str, Any], expected: object) -> None:
    assert_destination(target_update(UpdateStatement(bson.encode(statement)), routing), expected)


@pytest.mark.parametrize(("routing", "statement", "expected"), DELETES)
def test_delete(routing: RoutingTable, statement: Mapping[str, Any], expected: object) -> None:
    assert_destination(target_delete(DeleteStatement(bson.encode(statement)), routing), expected)


@pytest.mark.parametrize(("routing", "query", "collation", "expected"), FIND_AND_MODIFIES)
def test_find_and_modify(
    routing: RoutingTable, query: Mapping[str, Any], collation: Mapping[str, Any] | None, expected: object
) -> None:
    try:
        found: object = target_find_and_modify(bson.encode(query), collation, routing)
    except CommandError as error:
        found = error
    assert_destination(found, expected)


def test_hashed_key_equal_numbers_go_to_one_shard() -> None:
    documents: list[dict[str, object]] = [{"k": 7}, {"k": 7.0}, {"k": bson.Int64(7)}]
    found = target_batch(batch(WriteKind.INSERT, documents), BY_HASH, "primary")
    assert len(set(found.by_statement)) == 1


def test_unsharded_collection_everything_goes_to_the_primary_shard() -> None:
    statements: list[dict[str, object]] = [{"q": {}, "u": SET}, {"q": {"x": 1}, "u": SET, "upsert": True}]
    found = target_batch(batch(WriteKind.UPDATE, statements), None, "primary")
    assert found.by_statement == ["primary", "primary"]


def test_insert_without_id_gets_one_where_the_key_needs_it() -> None:
    writes = batch(WriteKind.INSERT, [{"x": 1}, {"_id": 5, "x": 2}, {"x": 3, "_id": 500}])
    found = target_batch(writes, BY_ID, "primary")
    first, *others = map(bson.decode, writes.statements)
    assert list(first) == ["_id", "x"]
    assert isinstance(first["_id"], ObjectId)
    assert others == [{"_id": 5, "x": 2}, {"x": 3, "_id": 500}]
    assert found.by_statement == ["north", "east", "north"]
    assert writes.has_own_statements


def test_insert_keeps_the_id_it_got_when_targeted_again() -> None:
    writes = batch(WriteKind.INSERT, [{"x": 1}])
    target_batch(writes, BY_ID, "primary")
    before = writes.statements[0]
    target_batch(writes, BY_ID, "primary")
    assert writes.statements[0] == before


def test_insert_without_id_is_left_alone_where_the_key_does_not_need_it() -> None:
    writes = batch(WriteKind.INSERT, [{"k": 1}])
    target_batch(writes, BY_K, "primary")
    assert not writes.has_own_statements
    assert bson.decode(writes.statements[0]) == {"k": 1}
