"""Commands that get the ownership filter, and its position in them."""

from collections.abc import Mapping, Sequence
from typing import Any

import bson
import pytest

from shardwright.daemon.users import RESERVED_SESSION_IDS
from shardwright.shardd.orphans.filtered_commands import hiding_moves, with_ownership
from shardwright.shardd.orphans.ownership_filter import OwnershipFilter
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.errors import CommandError
from shardwright.wire.message import EXHAUST_ALLOWED, OpMsg, encode_sequence, op_msg, with_checksum
from shardwright.wire.rawbson import encode_document
from shardwright.wire.request import Request

PATTERN = ShardKeyPattern.from_mapping({"a": 1})


def ownership(low: object = 0, high: object = 10, collation: Mapping[str, Any] | None = None) -> OwnershipFilter:
    bounds = (encode_document({"a": each}) for each in (low, high))
    return OwnershipFilter(PATTERN, [ChunkRange.of(PATTERN, *bounds)], collation)


OWNERSHIP = ownership()
FILTER = bson.decode(OWNERSHIP.query(None))
BY_NAME = ownership("a", "b", {"locale": "fr"})


def request(
    command: Mapping[str, Any], sequence: tuple[bytes, Sequence[Mapping[str, Any]]] | None = None, flags: int = 0
) -> Request:
    sections = b"" if sequence is None else encode_sequence(sequence[0], map(encode_document, sequence[1]))
    body = encode_document({**command, "$db": "d"})
    return Request(OpMsg(with_checksum(op_msg(body, request_id=7, flags=flags, sections=sections))))


def filtered(command: Mapping[str, Any], owned: OwnershipFilter = OWNERSHIP) -> dict[str, Any]:
    found = bson.decode(with_ownership(request(command), owned).body)
    assert found.pop("$db") == "d"
    return found


@pytest.mark.parametrize("query", [{"a": 11}, {"a": {"$eq": -1}, "b": 3}, {"$and": [{"a": 10}]}, {"a": None}])
@pytest.mark.parametrize("name", ["find", "count", "distinct", "findAndModify", "update", "delete", "aggregate"])
def test_a_query_pinned_to_an_owned_key_is_unchanged(name: str, query: Mapping[str, Any]) -> None:
    commands: Mapping[str, Mapping[str, Any]] = {
        "find": {"find": "c", "filter": query},
        "count": {"count": "c", "query": query},
        "distinct": {"distinct": "c", "key": "k", "query": query},
        "findAndModify": {"findAndModify": "c", "query": query, "update": {}},
        "update": {"update": "c", "updates": [{"q": query, "u": {}, "multi": True}]},
        "delete": {"delete": "c", "deletes": [{"q": query, "limit": 0}]},
        "aggregate": {"aggregate": "c", "pipeline": [{"$match": query}, {"$group": {"_id": 1}}]},
    }
    assert filtered(commands[name]) == commands[name]


@pytest.mark.parametrize("query", [{}, {"_id": 5}, {"a": {"$gt": 20}}, {"a": 5}, {"a": {"$in": [11, 12]}}])
def test_other_queries_get_the_filter(query: Mapping[str, Any]) -> None:
    assert filtered({"find": "c", "filter": query}) == {"find": "c", "filter": {**query, **FILTER}}


@pytest.mark.parametrize(
    ("collation", "is_filtered"), [(None, True), ({"locale": "simple"}, False), ({"locale": "de"}, True)]
)
def test_a_string_pins_only_under_the_simple_collation(collation: Mapping[str, Any] | None, is_filtered: bool) -> None:
    command = {"find": "c", "filter": {"a": "z"}, **({} if collation is None else {"collation": collation})}
    assert ("$expr" in filtered(command, BY_NAME)["filter"]) is is_filtered


def test_the_filter_depends_on_the_collation_only_where_strings_are_compared() -> None:
    french = {"locale": "fr"}
    assert OWNERSHIP.element(french) == OWNERSHIP.element(None)
    assert BY_NAME.element(french) != BY_NAME.element({"locale": "simple"})


def test_a_query_may_have_an_expression_of_its_own() -> None:
    body = with_ownership(request({"find": "c", "filter": {"$expr": True}}), OWNERSHIP).body
    assert body.count(b"$expr\0") == 2


@pytest.mark.parametrize(
    "command",
    [
        {"insert": "c", "documents": [{"a": 1}]},
        {"collStats": "c"},
        {"find": "c", "readConcern": {"level": "available"}},
        {"aggregate": "c", "pipeline": [{"$collStats": {"count": {}}}]},
        {"aggregate": "c", "pipeline": [{"$indexStats": {}}]},
        {"aggregate": "c", "pipeline": [{"$changeStream": {}}, {"$match": {"x": 1}}]},
        {"aggregate": "c", "pipeline": [{"$mergeCursors": {}}]},
        {"explain": {"insert": "c", "documents": []}},
        {"find": "c", "filter": 5},
        {"update": "c", "updates": [{"u": {}}]},
        {"update": "c", "updates": [{"q": {"a": 11}, "u": {}, "upsert": True}]},
        {"findAndModify": "c", "query": {"a": 11}, "update": {}, "upsert": True},
    ],
)
def test_commands_that_do_not_concern_orphans_are_unchanged(command: Mapping[str, Any]) -> None:
    assert filtered(command) == command


@pytest.mark.parametrize(
    "command",
    [
        {"update": "c", "updates": [{"q": {"a": 5}, "u": {}, "upsert": True}]},
        {"update": "c", "updates": [{"q": {"b": 1}, "u": {}, "upsert": True}]},
        {"findAndModify": "c", "query": {"a": 5}, "update": {}, "upsert": True},
    ],
)
def test_an_upsert_that_may_match_an_orphan_is_refused(command: Mapping[str, Any]) -> None:
    with pytest.raises(CommandError) as caught:
        filtered(command)
    assert caught.value.code == 61


@pytest.mark.parametrize(
    ("pipeline", "expected"),
    [
        ([], [{"$match": FILTER}]),
        ([{"$match": {"x": 1}}], [{"$match": {"x": 1, **FILTER}}]),
        ([{"$group": {"_id": 1}}], [{"$match": FILTER}, {"$group": {"_id": 1}}]),
        ([{"$geoNear": {"near": [0, 0]}}], [{"$geoNear": {"near": [0, 0], "query": FILTER}}]),
        ([{"$geoNear": {"query": {"x": 1}}}], [{"$geoNear": {"query": {"x": 1, **FILTER}}}]),
        ([{"$sample": {"size": 1}}, {"$match": {}}], [{"$match": FILTER}, {"$sample": {"size": 1}}, {"$match": {}}]),
    ],
)
def test_pipelines(pipeline: list[Any], expected: list[Any]) -> None:
    assert filtered({"aggregate": "c", "pipeline": pipeline, "cursor": {}})["pipeline"] == expected


def test_each_statement_gets_the_filter_if_it_needs_it() -> None:
    statements = [{"q": {"a": 11}, "limit": 1}, {"limit": 0, "q": {"x": 1}, "hint": "x_1"}]
    expected = [statements[0], {"limit": 0, "q": {"x": 1, **FILTER}, "hint": "x_1"}]
    assert filtered({"delete": "c", "deletes": statements, "ordered": False}) == {
        "delete": "c",
        "deletes": expected,
        "ordered": False,
    }
    found = with_ownership(request({"delete": "c"}, (b"deletes", statements)), OWNERSHIP)
    assert [bson.decode(each) for each in found.documents(b"deletes")] == expected


def test_ids_flags_and_other_fields_are_kept() -> None:
    found = with_ownership(request({"find": "c", "comment": "x"}, flags=EXHAUST_ALLOWED), OWNERSHIP)
    assert (found.message.request_id, found.message.flags) == (7, EXHAUST_ALLOWED)
    assert bson.decode(found.body) == {"find": "c", "comment": "x", "$db": "d", "filter": FILTER}


def test_the_explained_command_is_the_filtered_one() -> None:
    command = {"explain": {"find": "c", "filter": {"x": 1}}, "verbosity": "queryPlanner"}
    assert filtered(command) == {**command, "explain": {"find": "c", "filter": {"x": 1, **FILTER}}}


def test_change_streams_leave_out_the_reserved_sessions() -> None:
    stream, project = {"$changeStream": {"fullDocument": "updateLookup"}}, {"$project": {"x": 1}}
    body = hiding_moves(request({"aggregate": 1, "pipeline": [stream, project]})).body
    first, match, *others = bson.decode(body)["pipeline"]
    assert (first, others) == (stream, [project])
    hidden = match["$match"]["lsid.id"]["$nin"]
    assert [each.as_uuid() for each in hidden] == list(RESERVED_SESSION_IDS)


@pytest.mark.parametrize("pipeline", [[], [{"$match": {}}], [{"$match": {}}, {"$changeStream": {}}], 5, [5]])
def test_other_pipelines_are_unchanged(pipeline: object) -> None:
    asked = request({"aggregate": "c", "pipeline": pipeline})
    assert hiding_moves(asked) is asked
