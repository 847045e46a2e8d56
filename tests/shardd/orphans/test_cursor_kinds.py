"""What an open cursor's command says about the documents that it has yet to return."""

from typing import Any

import bson
import pytest
from bson.max_key import MaxKey

from shardwright.shardd.orphans.cursor_kinds import may_return, shows_shard_key
from shardwright.shardd.orphans.ownership_filter import OwnershipFilter
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.shard_key import ShardKeyPattern

PATTERN = ShardKeyPattern.from_mapping({"a": 1, "b.c": 1})
FROM_TEN = ChunkRange.of(PATTERN, bson.encode({"a": 10, "b.c": 0}), bson.encode({"a": MaxKey(), "b.c": MaxKey()}))
HIDDEN = OwnershipFilter(PATTERN, (FROM_TEN,), None)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ({"find": "c"}, True),
        ({"find": "c", "filter": {"x": 1}}, True),
        ({"find": "c", "filter": {"a": 10}}, True),
        ({"find": "c", "filter": {"a": 9}}, False),
        ({"find": "c", "filter": {"a": {"$lt": 10}}}, False),
        ({"find": "c", "readConcern": {"level": "snapshot"}}, False),
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
        ({"find": "c"}, True),
        ({"find": "c", "projection": {}}, True),
        ({"find": "c", "projection": {"$sortKey": {"$meta": "sortKey"}}}, True),
        ({"find": "c", "projection": {"a": 1, "b": 1}}, True),
        ({"find": "c", "projection": {"a": 1, "b.c": True, "_id": 0}}, True),
        ({"find": "c", "projection": {"a": 1}}, False),
        ({"find": "c", "projection": {"_id": 1}}, False),
        ({"find": "c", "projection": {"_id": 0}}, True),
        ({"find": "c", "projection": {"x": 0}}, True),
        ({"find": "c", "projection": {"b.d": 0}}, True),
        ({"find": "c", "projection": {"b": 0}}, False),
        ({"find": "c", "projection": {"b.c.d": 0}}, False),
        ({"find": "c", "projection": {"a": "$x", "b": 1}}, False),
        ({"find": "c", "limit": 200}, False),
        ({"find": "c", "returnKey": True}, False),
        ({"aggregate": "c", "pipeline": [{"$match": {}}]}, True),
        ({"aggregate": "c", "pipeline": [{"$match": {}}, {"$set": {"a": 1}}]}, False),
    ],
    ids=str,
)
def test_which_cursors_show_the_shard_key(command: dict[str, Any], expected: bool) -> None:
    assert shows_shard_key(command, PATTERN) is expected
