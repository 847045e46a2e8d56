"""Classification of open cursors by their commands: the documents that they may still return."""

from typing import Any

import bson
import pytest
from bson.max_key import MaxKey

from shardwright.shardd.orphans.cursor_kinds import Shown, may_return, shown_by, shown_by_projection
from shardwright.shardd.orphans.ownership_filter import OwnershipFilter
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.shard_key import ShardKeyPattern

PATTERN = ShardKeyPattern.from_mapping({"a": 1, "b.c": 1})
FROM_TEN = ChunkRange.of(PATTERN, bson.encode({"a": 10, "b.c": 0}), bson.encode({"a": MaxKey(), "b.c": MaxKey()}))
HIDDEN = OwnershipFilter(PATTERN, (FROM_TEN,), None)
KEY, ID, NEITHER = Shown.KEY, Shown.ID, Shown.NEITHER


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ({"find": "c"}, True),
        ({"find": "c", "filter": {"x": 1}}, True),
        ({"find": "c", "filter": {"a": 10}}, True),
        ({"find": "c", "filter": {"a": 9}}, False),
        ({"find": "c", "filter": {"a": {"$lt": 10}}}, False),
        ({"find": "c", "readConcern": {"level": "snapshot"}}, False),
        ({"find": "c", "readConcern": {"level": "available"}}, False),
        ({"find": "c", "readConcern": {"level": "local"}, "autocommit": False}, False),
        ({"aggregate": "c", "pipeline": []}, True),
        ({"aggregate": "c", "pipeline": [{"$match": {"a": {"$gt": 3}}}]}, True),
        ({"aggregate": "c", "pipeline": [{"$match": {"a": 3}}, {"$project": {"x": 1}}]}, False),
        ({"aggregate": "c", "pipeline": [{"$project": {"x": 1}}]}, True),
        ({"aggregate": "c", "pipeline": [{"$group": {"_id": "$x"}}]}, False),
        ({"aggregate": "c", "pipeline": [{"$changeStream": {}}]}, False),
        ({"aggregate": "c", "pipeline": [{"$mergeCursors": {}}, {"$match": {}}]}, False),
    ],
    ids=str,
)
def test_which_cursors_may_return_a_range(command: dict[str, Any], expected: bool) -> None:
    assert may_return(command, HIDDEN) is expected


def test_a_group_that_has_not_begun_may_still_read_a_range() -> None:
    grouping: dict[str, Any] = {"aggregate": "c", "pipeline": [{"$group": {"_id": "$x"}}]}
    assert may_return(grouping, HIDDEN, is_begun=False)
    grouping["pipeline"].insert(0, {"$match": {"a": 3}})
    assert not may_return(grouping, HIDDEN, is_begun=False)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ({"find": "c"}, KEY),
        ({"find": "c", "projection": {}}, KEY),
        ({"find": "c", "projection": {"$sortKey": {"$meta": "sortKey"}}}, KEY),
        ({"find": "c", "projection": {"$sortKey": {"$meta": "geoNearDistance"}}}, KEY),
        ({"find": "c", "projection": {"a": {"$meta": "sortKey"}}, "sort": {"other": 1}}, ID),
        ({"find": "c", "projection": {"a": 1, "b": 1}}, KEY),
        ({"find": "c", "projection": {"a": 1, "b": {"c": 1}, "x": {"$add": ["$y", 1]}}}, KEY),
        ({"find": "c", "projection": {"a": 1, "b.c": True, "_id": 0}}, KEY),
        ({"find": "c", "projection": {"a": 1}}, ID),
        ({"find": "c", "projection": {"_id": 1}}, ID),
        ({"find": "c", "projection": {"_id": 0}}, KEY),
        ({"find": "c", "projection": {"x": 0}}, KEY),
        ({"find": "c", "projection": {"b.d": 0}}, KEY),
        ({"find": "c", "projection": {"b": 0}}, ID),
        ({"find": "c", "projection": {"b.c.d": 0}}, ID),
        ({"find": "c", "projection": {"b": 0, "_id": 0}}, NEITHER),
        ({"find": "c", "projection": {"x": 1, "_id": 0}}, NEITHER),
        ({"find": "c", "projection": {"x": 1, "_id": "$y"}}, NEITHER),
        ({"find": "c", "projection": {"a": "$x", "b": 1}}, ID),
        ({"find": "c", "limit": 200}, NEITHER),
        ({"find": "c", "returnKey": True}, NEITHER),
        ({"aggregate": "c", "pipeline": [{"$match": {}}]}, KEY),
        ({"aggregate": "c", "pipeline": [{"$match": {}}, {"$set": {"x": 1}}, {"$sort": {"x": 1}}]}, KEY),
        ({"aggregate": "c", "pipeline": [{"$match": {}}, {"$set": {"a": 1}}]}, ID),
        ({"aggregate": "c", "pipeline": [{"$unwind": "$x"}]}, KEY),
        ({"aggregate": "c", "pipeline": [{"$unwind": {"path": "$x", "includeArrayIndex": "a"}}]}, ID),
        ({"aggregate": "c", "pipeline": [{"$lookup": {"from": "d", "pipeline": [], "as": "_id"}}]}, KEY),
        ({"aggregate": "c", "pipeline": [{"$unset": ["a", "x"]}]}, ID),
        ({"aggregate": "c", "pipeline": [{"$unset": ["a", "_id"]}]}, NEITHER),
        ({"aggregate": "c", "pipeline": [{"$project": {"a": 1}}, {"$project": {"_id": 0}}]}, NEITHER),
        ({"aggregate": "c", "pipeline": [{"$limit": 200}]}, NEITHER),
        ({"aggregate": "c", "pipeline": [{"$replaceRoot": {"newRoot": "$x"}}]}, NEITHER),
        ({"aggregate": "c", "pipeline": [{"$unionWith": "d"}]}, NEITHER),
    ],
    ids=str,
)
def test_what_the_documents_of_cursors_show(command: dict[str, Any], expected: Shown) -> None:
    assert shown_by(command, PATTERN) is expected


def test_a_projection_need_not_be_utf_8() -> None:
    projection = bson.encode({"a": 1, "~": 1}).replace(b"~", b"\xff")
    assert shown_by_projection(projection, bson.encode({"a": 1, "b.c": 1})) is ID


def test_a_cursor_with_a_complete_filter_returns_nothing_that_arrives() -> None:
    complete = OwnershipFilter(PATTERN, (FROM_TEN,), None, is_complete=True)
    query = bson.decode(complete.query(None))
    assert not may_return({"find": "c", "filter": {"x": 1, **query}}, HIDDEN)
    assert not may_return({"aggregate": "c", "pipeline": [{"$match": query}, {"$limit": 5}]}, HIDDEN)
    assert may_return({"find": "c", "filter": bson.decode(HIDDEN.query(None))}, HIDDEN)
