"""The arguments of find, and the command for several shards."""

from typing import Any

import bson
import pytest

from shardwright.router.reads.find_arguments import (
    FindArguments,
    check_explained,
    check_for_mongos,
    filter_of,
    is_immortal,
    is_near,
    requests_resume_token,
)
from shardwright.router.reads.sort_order import NEAREST_FIRST, SortOrder
from shardwright.wire.errors import CommandError
from tests.router.reads.requests import request


def for_shards(command: dict[str, Any]) -> dict[str, Any]:
    """The command sent to several shards for a find."""
    found = request({"find": "c", **command})
    return bson.decode(FindArguments.parse(found).body_for_shards(found.body))


# The client's command and the one for each of several shards, both without {find: "c", $db: "test"}.
SORT_KEY = {"$sortKey": {"$meta": "sortKey"}}
GOLDEN: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"filter": {"a": 1}, "batchSize": 5}, {"filter": {"a": 1}, "batchSize": 5}),
    ({"skip": 5}, {}),
    ({"limit": 10}, {"limit": 10}),
    ({"skip": 5, "limit": 10}, {"limit": 15}),
    ({"limit": 3.9}, {"limit": 3}),
    ({"limit": None, "skip": None}, {}),
    ({"singleBatch": True, "limit": 1}, {"limit": 1}),
    ({"sort": {"a": -1}}, {"sort": {"a": -1}, "projection": SORT_KEY}),
    ({"sort": {"a": 1}, "projection": {"b": 1}}, {"sort": {"a": 1}, "projection": {"b": 1, **SORT_KEY}}),
    ({"sort": {"$natural": -1}, "projection": {"b": 1}}, {"sort": {"$natural": -1}, "projection": {"b": 1}}),
    ({"sort": {}, "projection": {"b": 0}}, {"sort": {}, "projection": {"b": 0}}),
    (
        {"filter": {"p": {"$near": [0, 0]}}},
        {"filter": {"p": {"$near": [0, 0]}}, "projection": {"$sortKey": {"$meta": "geoNearDistance"}}},
    ),
    (
        {"hint": "a_1", "collation": {"locale": "en"}, "let": {"x": 1}, "comment": "hi", "maxTimeMS": 5},
        {"hint": "a_1", "collation": {"locale": "en"}, "let": {"x": 1}, "comment": "hi", "maxTimeMS": 5},
    ),
    (
        {"min": {"a": 1}, "max": {"a": 5}, "returnKey": True, "showRecordId": True, "noCursorTimeout": True},
        {"min": {"a": 1}, "max": {"a": 5}, "returnKey": True, "showRecordId": True, "noCursorTimeout": True},
    ),
]


@pytest.mark.parametrize(("sent", "forwarded"), GOLDEN)
def test_what_several_shards_are_sent(sent: dict[str, Any], forwarded: dict[str, Any]) -> None:
    assert for_shards(sent) == {"find": "c", **forwarded, "$db": "test"}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ({"skip": -1}, 51024, "BSON field 'skip' value must be >= 0, actual value '-1'"),
        ({"limit": -3}, 51024, "BSON field 'limit' value must be >= 0, actual value '-3'"),
        ({"batchSize": -1}, 51024, "BSON field 'batchSize' value must be >= 0, actual value '-1'"),
        (
            {"limit": "x"},
            14,
            "BSON field 'FindCommandRequest.limit' is the wrong type 'string', expected types "
            "'[long, int, decimal, double']",
        ),
        ({"singleBatch": 1}, 14, "Field 'singleBatch' should be a boolean value, but found: int"),
        ({"allowPartialResults": "x"}, 14, "Field 'allowPartialResults' should be a boolean value, but found: string"),
        (
            {"limit": bson.Int64((1 << 63) - 1), "skip": 1},
            15,
            "sum of limit and skip cannot be represented as a 64-bit integer, limit: 9223372036854775807, skip: 1",
        ),
    ],
)
def test_a_wrong_argument_is_refused_in_mongodbs_words(arguments: dict[str, Any], code: int, message: str) -> None:
    with pytest.raises(CommandError) as refused:
        FindArguments.parse(request({"find": "c", **arguments}))
    assert (refused.value.code, refused.value.message) == (code, message)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ({"projection": {"$sortKey": 1}}, 2, "Projection contains illegal field '$sortKey': { $sortKey: 1 }"),
        ({"$_requestResumeToken": True}, 2, "hint must be {$natural:1} if 'requestResumeToken' is enabled"),
        ({"$_resumeAfter": {"$recordId": 1}}, 2, "'requestResumeToken' must be true if 'resumeAfter' is specified"),
        ({"$_requestResumeToken": 1}, 14, "Field '$_requestResumeToken' should be a boolean value, but found: int"),
        ({"ntoreturn": 3}, 5746101, "Cannot specify ntoreturn in a find command against mongos"),
    ],
)
def test_what_only_a_mongod_accepts_is_refused(arguments: dict[str, Any], code: int, message: str) -> None:
    with pytest.raises(CommandError) as refused:
        check_for_mongos(request({"find": "c", **arguments}))
    assert (refused.value.code, refused.value.message) == (code, message)


@pytest.mark.parametrize(
    "arguments", [{"$_requestResumeToken": False}, {"$_resumeAfter": {}}, {"projection": {"a": "$sortKey"}}]
)
def test_what_both_accept_is_passed_on(arguments: dict[str, Any]) -> None:
    check_for_mongos(request({"find": "c", **arguments}))


TOKEN: dict[str, Any] = {"$_requestResumeToken": True, "hint": {"$natural": 1}}


@pytest.mark.parametrize(
    ("arguments", "is_requested"),
    [
        ({}, False),
        ({"$_requestResumeToken": False, "$_resumeAfter": {}}, False),
        (TOKEN, True),
        ({**TOKEN, "sort": {"$natural": 1.0}, "$_resumeAfter": {"$recordId": None}}, True),
    ],
)
def test_a_requested_resume_token(arguments: dict[str, Any], *, is_requested: bool) -> None:
    assert requests_resume_token(request({"find": "c", **arguments})) is is_requested


def test_an_explained_find_with_a_resume_token() -> None:
    check_explained(request({"find": "c", **TOKEN, "$_resumeAfter": {"$recordId": bson.Int64(5)}}))
    with pytest.raises(CommandError, match="may not request or provide a resume token"):
        check_explained(request({"find": "c", **TOKEN, "$_resumeAfter": {"$recordId": b"id"}}))


def test_a_filter_that_is_no_document_is_refused() -> None:
    with pytest.raises(CommandError, match="Expected field filterto be of type object"):
        filter_of(request({"find": "c", "filter": 3}))


def test_parsed_arguments() -> None:
    parsed = FindArguments.parse(
        request(
            {"find": "c", "skip": bson.Int64(2), "limit": 7.0, "batchSize": 0, "sort": {"a": 1}, "singleBatch": True}
        )
    )
    assert parsed == FindArguments(
        order=SortOrder((False,)),
        field_order=parsed.field_order,
        projection=None,
        skip=2,
        limit=7,
        batch_size=0,
        is_single_batch=True,
        allows_partial_results=False,
        is_for_shards=False,
    )


@pytest.mark.parametrize(
    ("filter_document", "near"),
    [
        ({}, False),
        ({"a": "$near"}, False),
        ({"p": {"$near": [0, 0]}}, True),
        ({"p": {"$nearSphere": [0, 0]}}, True),
        ({"$and": [{"a": 1}, {"p": {"$geoNear": [0, 0]}}]}, True),
        ({"$and": [{"$and": [{"p": {"$near": [0, 0]}}]}]}, True),
        ({"p": {"x": {"$near": [0, 0]}}}, False),
        ({"$or": [{"p": {"$near": [0, 0]}}]}, False),
    ],
)
def test_which_filters_order_by_distance(filter_document: dict[str, Any], near: bool) -> None:
    assert is_near(bson.encode(filter_document)) is near


def test_a_sort_outweighs_a_distance() -> None:
    near = {"find": "c", "filter": {"p": {"$near": [0, 0]}}}
    assert FindArguments.parse(request(near)).order == NEAREST_FIRST
    assert FindArguments.parse(request({**near, "sort": {"a": 1}})).order == SortOrder((False,))


def test_no_cursor_timeout_makes_immortal() -> None:
    assert is_immortal(request({"find": "c", "noCursorTimeout": True}))
    assert not is_immortal(request({"find": "c"}))
