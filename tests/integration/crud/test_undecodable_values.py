"""Values that no Python can decode (broken UTF-8, dates beyond the year 9999) pass through everything as they are."""

import struct
from typing import Any

import pytest
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument

from tests.integration.sharded import Documents, shard_by_range
from tests.local_cluster import Client

RAW = CodecOptions[RawBSONDocument](document_class=RawBSONDocument)
BROKEN = b"a\xff\xfe\xc3("
YEAR_287396 = 9_007_199_254_740_992


def raw(number: int) -> RawBSONDocument:
    """Return a document with such values, different from all others."""
    text = BROKEN + bytes([65 + number])
    fields = b"\x10_id\0%s\x10key\0%s\x02s\0%s%s\0\x09d\0%s" % (
        struct.pack("<i", number),
        struct.pack("<i", number * 100),
        struct.pack("<i", len(text) + 1),
        text,
        struct.pack("<q", YEAR_287396 + number),
    )
    return RawBSONDocument(struct.pack("<i", len(fields) + 5) + fields + b"\0")


@pytest.mark.parametrize(
    "pipeline",
    [
        [{"$group": {"_id": "$s", "last": {"$max": "$d"}, "all": {"$push": "$$ROOT"}}}],
        [{"$sort": {"s": -1}}, {"$limit": 3}],
        [{"$lookup": {"from": "OTHER", "localField": "s", "foreignField": "s", "as": "r"}}],
        [
            {"$lookup": {"from": "OTHER", "localField": "d", "foreignField": "d", "as": "r"}},
            {"$group": {"_id": "$r.s"}},
        ],
        [
            {
                "$lookup": {
                    "from": "OTHER",
                    "let": {"d": "$d"},
                    "pipeline": [{"$match": {"$expr": {"$eq": ["$d", "$$d"]}}}],
                    "as": "r",
                }
            }
        ],
        [
            {
                "$graphLookup": {
                    "from": "OTHER",
                    "startWith": "$s",
                    "connectFromField": "s",
                    "connectToField": "s",
                    "as": "r",
                }
            }
        ],
        [{"$unionWith": "OTHER"}, {"$group": {"_id": "$d", "n": {"$sum": 1}}}],
    ],
    ids=lambda pipeline: "".join(next(iter(stage)) for stage in pipeline),
)
def test_aggregations(client: Client, placed: Documents, pipeline: list[dict[str, Any]]) -> None:
    database = placed.database
    shard_by_range(database, "other")
    documents = [raw(number) for number in range(10)]
    for name in (placed.name, "other", "alone", "other_alone"):
        database.get_collection(name, RAW).insert_many(documents)

    def answer(name: str, other: str) -> list[bytes]:
        stages = [{operator: _with_name(argument, other) for operator, argument in stage.items()} for stage in pipeline]
        found: Any = database.get_collection(name, RAW).aggregate(stages)
        return sorted(document.raw for document in found)

    assert answer(placed.name, "other") == answer("alone", "other_alone")


def test_change_streams(placed: Documents) -> None:
    collection = placed.database.get_collection(placed.name, RAW)
    documents = [raw(number) for number in (1, 9)]
    for stages in ([], [{"$addFields": {"copy": "$fullDocument"}}]):
        collection.delete_many({})
        with collection.watch(stages, max_await_time_ms=500) as stream:
            collection.insert_many(documents)
            for document in documents:
                inserted: Any = stream.next()["fullDocument"]
                assert inserted.raw == document.raw


def _with_name(argument: Any, other: str) -> Any:  # noqa: ANN401 - the argument of any stage
    if argument == "OTHER":
        return other
    return {**argument, "from": other} if isinstance(argument, dict) and "from" in argument else argument
