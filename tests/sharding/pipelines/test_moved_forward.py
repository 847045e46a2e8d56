"""Moving ``$match`` and ``$sort`` towards the front."""

from typing import Any

import pytest

from shardwright.sharding.pipelines.pushdown import moved_forward
from tests.router.pipelines.parsing import decoded, parsed

Stages = list[dict[str, Any]]

A: dict[str, Any] = {"$match": {"a": 1}}
JOIN: dict[str, Any] = {"$lookup": {"from": "o", "localField": "x", "foreignField": "y", "as": "r"}}
GRAPH: dict[str, Any] = {
    "$graphLookup": {"from": "o", "startWith": "$x", "connectFromField": "f", "connectToField": "t", "as": "r"}
}
SORT: dict[str, Any] = {"$sort": {"a": 1}}
LIMIT: dict[str, Any] = {"$limit": 3}


def grouped(by: object) -> dict[str, Any]:
    """A group by an expression."""
    return {"$group": {"_id": by, "n": {"$sum": 1}}}


def united(*stages: dict[str, Any]) -> dict[str, Any]:
    """A union whose other documents pass some stages."""
    return {"$unionWith": {"coll": "o", "pipeline": list(stages)}}


UNPACK: dict[str, Any] = {"$_internalUnpackBucket": {"timeField": "t", "metaField": "m", "bucketMaxSpanSeconds": 3600}}


def unpacking(**others: object) -> dict[str, Any]:
    """Return the stage that unpacks buckets, with further fields."""
    return {"$_internalUnpackBucket": {**UNPACK["$_internalUnpackBucket"], **others}}


MOVED: list[tuple[Stages, Stages]] = [
    ([UNPACK, {"$match": {"m.a": 1, "t": 2}}], [{"$match": {"meta.a": 1}}, UNPACK, {"$match": {"t": 2}}]),
    (
        [UNPACK, {"$match": {"$or": [{"m": 1}, {"m.b": 2}]}}],
        [{"$match": {"$or": [{"meta": 1}, {"meta.b": 2}]}}, UNPACK],
    ),
    ([UNPACK, {"$sort": {"m.a": 1, "m": -1}}], [{"$sort": {"meta.a": 1, "meta": -1}}, UNPACK]),
    ([UNPACK, {"$sort": {"m": 1}}, {"$skip": 1}, LIMIT], [{"$sort": {"meta": 1}}, UNPACK, {"$skip": 1}, LIMIT]),
    ([UNPACK, JOIN, {"$sort": {"m": 1}}, LIMIT], [{"$sort": {"meta": 1}}, UNPACK, LIMIT, JOIN]),
    (
        [unpacking(exclude=[]), {"$match": {"m": 3}}, {"$sort": {"m.a": 1}}],
        [{"$match": {"meta": 3}}, {"$sort": {"meta.a": 1}}, unpacking(exclude=[])],
    ),
    ([SORT, A], [A, SORT]),
    ([A, SORT, {"$match": {"b": 1}}], [A, {"$match": {"b": 1}}, SORT]),
    *(
        ([stage, A], [A, stage])
        for stage in (
            JOIN,
            GRAPH,
            {"$unwind": "$b"},
            {"$unwind": {"path": "$b", "includeArrayIndex": "i"}},
            {"$addFields": {"b": 1, "c.d": 2}},
            {"$set": {"b": {"c": 1}}},
            {"$unset": ["b", "c.d"]},
            {"$project": {"b": 0}},
            {"$project": {"a": 1, "b": "$c"}},
            {"$project": {"_id": 0, "a": True}},
        )
    ),
    ([JOIN, {"$match": {"a": 1, "r.b": 2}}], [A, JOIN, {"$match": {"r.b": 2}}]),
    ([JOIN, {"$match": {"$and": [{"a": 1}, {"r": 2}]}}], [A, JOIN, {"$match": {"r": 2}}]),
    (
        [JOIN, {"$unwind": "$r"}, {"$match": {"a": 1, "b": 2}}],
        [{"$match": {"$and": [{"a": 1}, {"b": 2}]}}, JOIN, {"$unwind": "$r"}],
    ),
    ([JOIN, {"$match": {"$or": [{"a": 1}, {"b": 1}]}}], [{"$match": {"$or": [{"a": 1}, {"b": 1}]}}, JOIN]),
    ([JOIN, {"$match": {"$expr": {"$eq": ["$a", "$b"]}}}], [{"$match": {"$expr": {"$eq": ["$a", "$b"]}}}, JOIN]),
    ([{"$project": {"b": "$a"}}, {"$match": {"b": 1}}], [A, {"$project": {"b": "$a"}}]),
    ([{"$addFields": {"b": "$a"}}, {"$match": {"b.c": 1}}], [{"$match": {"a.c": 1}}, {"$addFields": {"b": "$a"}}]),
    ([grouped("$a"), {"$match": {"_id": 1, "n": 2}}], [A, grouped("$a"), {"$match": {"n": 2}}]),
    ([grouped("$a"), SORT, {"$match": {"_id": {"$ne": 1}}}], [{"$match": {"a": {"$ne": 1}}}, grouped("$a"), SORT]),
    ([grouped({"b": "$a"}), {"$match": {"_id.b": 1}}], [A, grouped({"b": "$a"})]),
    ([{"$unionWith": "o"}, A], [A, united(A)]),
    ([united(SORT), A], [A, united(SORT, A)]),
    ([JOIN, {"$unionWith": "o"}, {"$match": {"r": 1}}], [JOIN, {"$match": {"r": 1}}, united({"$match": {"r": 1}})]),
    ([JOIN, SORT, LIMIT], [SORT, LIMIT, JOIN]),
    ([{"$sort": {"b": -1}}, SORT], [SORT]),
    ([{"$sort": {"b": {"$meta": "textScore"}}}, {"$sort": {"c": 1}}, SORT, LIMIT], [SORT, LIMIT]),
    ([{"$sort": {"b": 1}}, A, SORT], [A, SORT]),
    ([{"$sort": {"b": 1}}, LIMIT, SORT], [{"$sort": {"b": 1}}, LIMIT, SORT]),
    ([JOIN, {"$sort": {"b": 1}}, SORT, LIMIT], [SORT, LIMIT, JOIN]),
    ([UNPACK, {"$sort": {"t": 1}}, {"$sort": {"v": 1}}], [UNPACK, {"$sort": {"v": 1}}]),
    ([UNPACK, {"$sort": {"m": 1}}, {"$sort": {"m.a": 1}}], [{"$sort": {"meta.a": 1}}, UNPACK]),
    *(
        ([{"$sort": refused}, SORT], [{"$sort": refused}, SORT])
        for refused in (3, {}, {"": 1}, {"a.": 1}, {"$a": 1}, {"a": 2}, {"a": True}, {"a": {"$meta": "x"}})
    ),
    ([JOIN, GRAPH, SORT, {"$skip": 1}, LIMIT, A], [SORT, {"$skip": 1}, LIMIT, A, JOIN, GRAPH]),
]


@pytest.mark.parametrize(("given", "expected"), MOVED, ids=str)
def test_what_moves(given: Stages, expected: Stages) -> None:
    assert decoded(moved_forward(parsed(*given)).stages) == expected


BARRIERS: list[dict[str, Any]] = [
    LIMIT,
    {"$skip": 1},
    {"$sample": {"size": 1}},
    {"$facet": {"a": [{"$count": "n"}]}},
    {"$replaceWith": "$b"},
    {"$redact": "$$KEEP"},
    {"$bucketAuto": {"groupBy": "$a", "buckets": 2}},
    {"$setWindowFields": {"partitionBy": "$a", "output": {"r": {"$sum": 1}}}},
    {"$lookup": {"from": "o", "pipeline": [], "as": "a"}},
    {"$lookup": {"from": "o", "pipeline": [], "as": "a.b"}},
    {"$lookup": {"from": "o", "pipeline": []}},
    {"$lookup": 3},
    {"$unwind": "$a"},
    {"$unwind": {"path": "$a.b"}},
    {"$unwind": {"path": "$b", "includeArrayIndex": "a"}},
    {"$unwind": 3},
    {"$addFields": {"a": 1}},
    {"$addFields": {"a.b": "$c"}},
    {"$set": {"a": "$b.c"}},
    {"$set": {"a": "$$ROOT"}},
    {"$unset": "a.b"},
    {"$project": {"b": 1}},
    {"$project": {"a.b": 0}},
    {"$project": {"a.b": 1}},
    {"$project": {"a": {"$add": ["$a", 1]}}},
    {"$unionWith": {"pipeline": [{"$documents": []}]}},
    {"$unionWith": {"coll": "o", "unknown": 1}},
    {"$collStats": {}},
    {"$unknown": 1},
]
"""Stages that a condition on ``a`` may not pass."""

FIXED: list[object] = [
    {},
    {"$where": "true"},
    {"$text": {"$search": "a"}},
    {"$jsonSchema": {}},
    {"$comment": "said"},
    {"$expr": {"$lt": [{"$rand": {}}, 0.5]}},
    {"$expr": "$$ROOT"},
    {"$expr": {"$eq": ["$a", "$r"]}},
    {"$or": [{"a": 1}, {"r.b": 1}]},
    {"loc": {"$near": [0, 0]}},
    3,
]
"""Conditions that may not pass a ``$lookup`` into ``r``."""


@pytest.mark.parametrize(
    "stages",
    [
        [],
        [A],
        [A, {"$match": {"b": 1}}, SORT],
        *([stage, A] for stage in BARRIERS),
        *([JOIN, {"$match": match}] for match in FIXED),
        *(
            [grouped("$a"), {"$match": match}]
            for match in (
                {"_id": {"$exists": True}},
                {"_id": {"$type": "string"}},
                {"_id": {"$not": {"$eq": 1}}},
                {"$expr": {"$eq": ["$_id", 1]}},
                {"$or": [{"_id": 1}]},
                {"a": 1},
            )
        ),
        [grouped("$a.b"), {"$match": {"_id": 1}}],
        [grouped("$$ROOT"), {"$match": {"_id": 1}}],
        [grouped({"b": "$a"}), {"$match": {"_id": {"b": 1}}}],
        [grouped({"$add": ["$a", 1]}), {"$match": {"_id": 1}}],
        [JOIN, {"$sort": {"r.b": 1}}, LIMIT],
        [JOIN, {"$sort": {"s": {"$meta": "textScore"}}}],
        [JOIN, {"$unwind": "$r"}, SORT],
        [JOIN, LIMIT],
        [UNPACK, {"$sort": {"m": 1, "t": 1}}, LIMIT],
        [UNPACK, {"$sort": {"s": {"$meta": "textScore"}}}],
        [UNPACK, {"$match": {"$or": [{"m": 1}, {"t": 2}]}}, {"$sort": {"m": 1}}],
        [UNPACK, {"$match": {"$expr": {"$eq": ["$m", 1]}}}],
        [UNPACK, {"$match": {"mm": 1}}],
        [unpacking(exclude=["m"]), {"$match": {"m": 1}}],
        [unpacking(include=["m"]), {"$sort": {"m": 1}}],
        [unpacking(metaField=5), {"$sort": {"m": 1}}],
        [{"$_internalUnpackBucket": {"timeField": "t"}}, {"$match": {"m": 1}}],
    ],
    ids=str,
)
def test_what_stays(stages: Stages) -> None:
    pipeline = parsed(*stages)
    assert moved_forward(pipeline) is pipeline
