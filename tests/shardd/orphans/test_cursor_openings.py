"""Reads that need a complete filter, and a check of the classification against real documents."""

import random
from collections.abc import Iterator, Mapping
from typing import Any, Final

import bson
import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from shardwright.shardd.orphans import cursor_kinds
from shardwright.shardd.orphans.cursor_kinds import Opening, Shown, may_match, opening_of, shown_by
from shardwright.shardd.orphans.ownership_filter import OwnershipFilter
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.rawbson import encode_document
from shardwright.wire.request import Request
from tests.shardd.lone_mongod import LoneMongod

PATTERN: Final = ShardKeyPattern.from_mapping({"a": 1, "b.c": 1})
UNFILTERED, IF_OPEN, FILTERED = Opening.UNFILTERED, Opening.FILTERED_IF_OPEN, Opening.FILTERED
DOCUMENT: Final[Mapping[str, Any]] = {"_id": 7, "a": 1, "b": {"c": 2, "d": 3}, "x": [4], "y": {"z": 5}, "n": 6}


def request(command: Mapping[str, Any]) -> Request:
    return Request(OpMsg(op_msg(encode_document({**command, "$db": "d"}), request_id=7)))


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ({"find": "c"}, UNFILTERED),
        ({"find": "c", "limit": 1, "singleBatch": True}, UNFILTERED),
        ({"find": "c", "limit": 101}, IF_OPEN),
        ({"find": "c", "limit": 101, "sort": {"x": 1}}, IF_OPEN),
        ({"find": "c", "limit": 102}, FILTERED),
        ({"find": "c", "limit": 102.0}, FILTERED),
        ({"find": "c", "limit": float("nan")}, UNFILTERED),
        ({"find": "c", "limit": 5, "batchSize": 4}, FILTERED),
        ({"find": "c", "limit": 500, "batchSize": 500}, IF_OPEN),
        ({"find": "c", "limit": 101, "batchSize": 0}, UNFILTERED),
        ({"find": "c", "limit": 102, "batchSize": 0}, FILTERED),
        ({"find": "c", "limit": 10_001, "singleBatch": True}, UNFILTERED),
        ({"find": "c", "projection": {"x": 1}}, UNFILTERED),
        ({"find": "c", "projection": {"x": 1, "_id": 0}}, IF_OPEN),
        ({"find": "c", "projection": {"x": 1, "_id": 0}, "sort": {"x": 1}}, FILTERED),
        ({"find": "c", "projection": {"x": 1, "_id": 0}, "batchSize": 0}, FILTERED),
        ({"find": "c", "filter": {"x": 4}, "projection": {"x.$": 1, "_id": 0}}, UNFILTERED),
        ({"find": "c", "returnKey": True}, IF_OPEN),
        ({"aggregate": "c", "pipeline": [], "cursor": {}}, UNFILTERED),
        ({"aggregate": "c", "pipeline": [{"$project": {"x": 1}}], "cursor": {}}, UNFILTERED),
        ({"aggregate": "c", "pipeline": [{"$project": {"_id": 0, "x": 1}}], "cursor": {}}, IF_OPEN),
        ({"aggregate": "c", "pipeline": [{"$project": {"_id": 0, "x": 1}}], "cursor": {"batchSize": 0}}, FILTERED),
        ({"aggregate": "c", "pipeline": [{"$sort": {"x": 1}}, {"$unset": ["_id", "a"]}], "cursor": {}}, FILTERED),
        ({"aggregate": "c", "pipeline": [{"$group": {"_id": "$x"}}], "cursor": {"batchSize": 0}}, UNFILTERED),
        ({"aggregate": "c", "pipeline": [{"$match": {}}, {"$sort": {"x": 1}}], "cursor": {}}, UNFILTERED),
        ({"aggregate": "c", "pipeline": [{"$limit": 101}], "cursor": {}}, IF_OPEN),
        ({"aggregate": "c", "pipeline": [{"$sort": {"x": 1}}, {"$limit": 101}], "cursor": {}}, IF_OPEN),
        ({"aggregate": "c", "pipeline": [{"$sample": {"size": 101}}], "cursor": {}}, IF_OPEN),
        ({"aggregate": "c", "pipeline": [{"$limit": 500}], "cursor": {}}, FILTERED),
        ({"aggregate": "c", "pipeline": [{"$limit": 101}], "cursor": {"batchSize": 0}}, UNFILTERED),
        ({"aggregate": "c", "pipeline": [{"$limit": 500}], "cursor": {"batchSize": 0}}, FILTERED),
        ({"aggregate": "c", "pipeline": [{"$limit": 500}, {"$unwind": "$x"}], "cursor": {}}, FILTERED),
        ({"aggregate": "c", "pipeline": [{"$limit": 50_000}], "cursor": {}}, FILTERED),
        ({"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}}, UNFILTERED),
        ({"aggregate": "c", "pipeline": [{"$mergeCursors": {}}, {"$limit": 50_000}], "cursor": {}}, UNFILTERED),
        ({"aggregate": "c", "pipeline": 5}, UNFILTERED),
        ({"aggregate": "c", "pipeline": [5], "cursor": 5}, IF_OPEN),
    ],
    ids=str,
)
def test_when_a_read_needs_a_complete_filter(command: dict[str, Any], expected: Opening) -> None:
    assert opening_of(request(command), PATTERN) is expected


def test_nothing_is_decoded_of_pipelines_that_read_everything_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursor_kinds, "decode_value", None)
    pipeline = [{"$match": {"x": 1}}, {"$set": {"a": 1}}, {"$group": {"_id": "$x"}}]
    command = {"aggregate": "c", "pipeline": pipeline, "cursor": {}}
    assert opening_of(request(command), PATTERN) is UNFILTERED


def test_the_kind_of_a_long_pipeline_is_not_remembered() -> None:
    cursor_kinds._known_kind.cache_clear()
    for length, known in ((10, 1), (10_000, 1)):
        stage = {"$replaceRoot": {"newRoot": {"text": "x" * length}}}
        assert opening_of(request({"aggregate": "c", "pipeline": [stage], "cursor": {}}), PATTERN) is IF_OPEN
        assert cursor_kinds._known_kind.cache_info().currsize == known


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ({"find": "c", "filter": {"a": 5}}, False),
        ({"find": "c", "filter": {"a": {"$lt": 10}}}, False),
        ({"find": "c", "filter": {"a": {"$lt": 11}}}, True),
        ({"find": "c"}, True),
        ({"aggregate": "c", "pipeline": [{"$match": {"a": 5}}, {"$limit": 5}]}, False),
        ({"aggregate": "c", "pipeline": [{"$limit": 5}]}, True),
    ],
    ids=str,
)
def test_a_query_for_what_the_shard_owns_needs_no_filter(command: dict[str, Any], expected: bool) -> None:
    bounds = ({"a": 10, "b.c": 0}, {"a": 20, "b.c": 0})
    unowned = OwnershipFilter(PATTERN, [ChunkRange.of(PATTERN, *map(encode_document, bounds))], None, is_complete=True)
    assert may_match(request(command), unowned) is expected


PATHS: Final = ("_id", "a", "b", "b.c", "b.d", "x", "y", "y.z")
VALUES: Final = (0, 1, 1, True, False, 1.5, "$n", "text", {"$add": ["$n", 1]}, {"$meta": "indexKey"})


def projections(choice: random.Random) -> Iterator[dict[str, Any]]:
    while True:
        is_excluding = choice.random() < 0.4
        values = (0, False) if is_excluding else VALUES
        projection = {path: choice.choice(values) for path in choice.sample(PATHS, choice.randint(1, 3))}
        yield {**projection, **({"_id": choice.choice([0, 1])} if choice.random() < 0.3 else {})}


def stages(choice: random.Random) -> Iterator[dict[str, Any]]:
    projected = projections(choice)
    while True:
        path = choice.choice(PATHS)
        yield choice.choice(
            [
                {"$project": next(projected)},
                {"$addFields": {path: choice.choice(["$n", 9, {"k": 1}])}},
                {"$unset": choice.sample(PATHS, 2)},
                {"$unwind": f"${path}"},
                {"$unwind": {"path": "$x", "includeArrayIndex": choice.choice(PATHS)}},
                {"$sort": {"n": 1}},
                {"$match": {}},
                {"$lookup": {"from": "none", "pipeline": [], "as": path}},
                {"$replaceRoot": {"newRoot": {path.partition(".")[0]: "$n"}}},
            ]
        )


def test_documents_show_what_is_said_of_them(lone: LoneMongod) -> None:
    choice = random.Random(20_260_101)
    projected, staged = projections(choice), stages(choice)
    shown: dict[Shown, int] = dict.fromkeys(Shown, 0)
    with MongoClient[dict[str, Any]](lone.address, directConnection=True) as client:
        database = client.cursor_openings
        database.c.drop()
        database.c.insert_one(dict(DOCUMENT))
        for number in range(1500):
            command: dict[str, Any] = {"find": "c", "projection": next(projected)}
            if number % 2:
                pipeline = [next(staged) for _ in range(choice.randint(1, 3))]
                command = {"aggregate": "c", "pipeline": pipeline, "cursor": {}}
            try:
                found = database.command(command)["cursor"]["firstBatch"]
            except OperationFailure:
                continue
            said = shown_by(command, PATTERN)
            shown[said] += 1
            for document in found:
                if said is Shown.KEY:
                    key = PATTERN.key_bytes_of_document(bson.encode(document))
                    assert key == PATTERN.key_bytes_of_document(bson.encode(DOCUMENT)), command
                elif said is Shown.ID:
                    assert document["_id"] == DOCUMENT["_id"], command
        client.drop_database(database.name)
    assert min(shown.values()) > 50
