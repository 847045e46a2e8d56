"""Finds and aggregations that MongoDB's own router code refuses are refused by ours, with the same error."""

from typing import Any, Final

import pytest
from bson.int64 import Int64
from pymongo.database import Database

from tests.interop.sharded import Document
from tests.interop.test_explanations import CASELESS, as_mongos, filled, run, shard
from tests.local_cluster import Client

__all__ = ["filled", "shard"]

NATURAL: Final[Document] = {"hint": {"$natural": 1}}
HINTS: Final[tuple[Any, ...]] = (
    {"$natural": 1},
    {"$natural": 1.0},
    {"$natural": -1},
    {"$natural": True},
    "$natural",
    {"key": 1},
    {},
)
SORTED: Final[Document] = {"sort": {"key": 1}}
RECORD_IDS: Final = (Int64(1), None, 1, "x")
BINARY_TOKEN: Final[Document] = {"$_resumeAfter": {"$recordId": b"id"}, "$_requestResumeToken": True, **NATURAL}
WRONG_FLAGS: Final[tuple[Any, ...]] = (None, "x", {}, 1.5)
WRONG_TOKENS: Final[tuple[Any, ...]] = (5, None, "x", [])
RESUMING: Final[list[Document]] = [
    *({"$_requestResumeToken": True, **more} for more in ({}, *({"hint": hint} for hint in HINTS))),
    *({"$_requestResumeToken": True, **NATURAL, "sort": sort} for sort in ({"$natural": 1}, {"key": 1}, {})),
    *({"$_requestResumeToken": wrong, **NATURAL} for wrong in WRONG_FLAGS),
    *(
        {"$_resumeAfter": after, **more}
        for after in ({}, {"key": 1}, *({"$recordId": each} for each in RECORD_IDS))
        for more in ({}, {"$_requestResumeToken": False}, {"$_requestResumeToken": True, **NATURAL})
    ),
    {"$_resumeAfter": {"$recordId": Int64(1), "key": 1}, "$_requestResumeToken": True, **NATURAL},
    *({"$_resumeAfter": wrong, "$_requestResumeToken": True, **NATURAL} for wrong in WRONG_TOKENS),
    {"$_requestResumeToken": True, **NATURAL, "filter": {"$unknown": 1}},
    {"$_requestResumeToken": True, **NATURAL, "projection": {"a": {"$meta": "sortKey"}}},
    {"$_requestResumeToken": True, **NATURAL, "ntoreturn": 3},
    {"$_requestResumeToken": True, "ntoreturn": 3},
    {"$_requestResumeToken": True, **NATURAL, "tailable": True},
    {"$_requestResumeToken": True, **NATURAL, "unknown": True},
]
FINDS: Final[list[Document]] = [
    {"ntoreturn": 3},
    {"$_requestResumeToken": True, **NATURAL},
    {"$_requestResumeToken": False, **NATURAL},
    {"$_requestResumeToken": 1, **NATURAL},
    {"$_resumeAfter": {}},
    *RESUMING,
    BINARY_TOKEN,
    {"projection": {"$sortKey": 1}, **SORTED},
    {"projection": {"$sortKey": {"$meta": "sortKey"}}, **SORTED},
    {"projection": {"key": {"$meta": "sortKey"}}, **SORTED},
    {"skip": -1},
    {"maxTimeMS": -1},
]
UP_TO_ROOT: Final[Document] = {"connectFromField": "even", "connectToField": "key", "as": "up"}
NEAR: Final[Document] = {
    "$geoNear": {"near": {"type": "Point", "coordinates": [0, 0]}, "distanceField": "far", "key": "at"}
}
OUT_ELSEWHERE: Final[Document] = {"$out": {"db": "interop_nowhere", "coll": "c"}}
PIPELINES: Final[list[list[Document]]] = [
    [{"$unknown": 1}],
    [{"$match": {}}, {"$unknown": 1}],
    [{"$exchange": {}}],
    [{"$out": "x"}, {"$match": {}}],
    [{"$merge": {"into": "plain", "on": ["a", "b"]}}],
    [{"$merge": {"into": "plain", "on": "_id"}}],
    [{"$merge": {"into": "ranged", "on": ["a"]}}],
    [{"$merge": {"into": "new", "on": "a"}}],
    [{"$listLocalSessions": {}}, {"$out": "x"}],
    [{"$listCatalog": {}}],
    [{"$limit": 0}],
    [{"$graphLookup": {"from": "ranged"}}],
    [{"$match": {}}, {"$merge": "ranged"}],
    [{"$out": {"db": "local", "coll": "a"}}],
    [{"$merge": {"into": {"db": "local", "coll": "a"}}}],
    [{"$out": {"db": "interop_nowhere", "coll": "b", "c": 1}}],
    [{"$out": {"db": "interop_nowhere", "c": "b"}}],
    [{"$search": {}}],
    [{"$skip": 0}, NEAR],
    [{"$match": {}}, NEAR],
    [{"$match": {"key": 1}}, NEAR],
    [{"$collStats": {"count": {}}}],
    [{"$documents": [{"a": 1}]}],
    [{"$documents": [{"a": 1}]}, {"$out": "ranged"}],
    [{"$documents": [{"a": 1}]}, {"$out": "plain"}],
    [{"$documents": [{"a": 1}]}, {"$merge": "ranged"}],
    [OUT_ELSEWHERE],
    [{"$facet": {"a": [{"$out": "ranged"}]}}],
    [{"$currentOp": {}}, {"$out": "ranged"}],
    [{"$currentOp": {"localOps": True}}, {"$match": {"opid": None}}],
    [{"$shardedDataDistribution": {}}, {"$match": {"ns": None}}],
    [{"$match": {}}, {"$shardedDataDistribution": {}}],
    [{"$shardedDataDistribution": {"a": 1}}],
    [],
]
DOCUMENTS: Final[Document] = {"$documents": [{"key": 1}, {"key": 70}, {"key": -1}]}


def join(name: str, *pipeline: Document) -> Document:
    keys = {"localField": "key", "foreignField": "key"}
    return {"$lookup": {"from": name, "as": "found", **({"pipeline": list(pipeline)} if pipeline else keys)}}


# A genuine server crashes if the pipeline of a sharded $lookup reads a further collection.
AFTER_DOCUMENTS: Final[list[list[Document]]] = [
    *([join(name)] for name in ("ranged", "plain", "missing", "view_of_ranged", "view_of_plain")),
    *([{"$unionWith": name}] for name in ("ranged", "plain")),
    [{"$unionWith": {"pipeline": [DOCUMENTS]}}],
    [{"$lookup": {"as": "found", "pipeline": [DOCUMENTS]}}],
    *([join("ranged", stage)] for stage in ({"$match": {"key": 1}}, {"$sort": {"key": 1}}, {"$count": "n"})),
    *([{"$facet": {"a": [join(name)]}}] for name in ("ranged", "plain")),
    [{"$facet": {"a": [{"$unionWith": "ranged"}], "b": [{"$sort": {"key": 1}}]}}],
    *(
        [{"$graphLookup": {"from": name, "startWith": "$key", **UP_TO_ROOT}}]
        for name in ("ranged", "plain", "view_of_ranged")
    ),
    [join("ranged"), join("plain")],
    [join("ranged"), {"$unwind": "$found"}, {"$sort": {"key": 1}}, {"$limit": 1}],
    [join("plain"), {"$unknown": 1}],
    [join("plain"), DOCUMENTS],
    [{"$sort": {"key": 1}}, join("plain")],
    [{"$geoNear": {"near": [0, 0], "distanceField": "far"}}],
    *([{name: "$key"}] for name in ("$sortByCount", "$unwind")),
    [{"$count": "n"}],
    [{"$sample": {"size": 3}}],
    [{"$bucket": {"groupBy": "$key", "boundaries": [-10, 100]}}],
    [{"$bucketAuto": {"groupBy": "$key", "buckets": 2}}],
    [{"$setWindowFields": {"sortBy": {"key": 1}, "output": {"rank": {"$rank": {}}}}}],
    [{"$setWindowFields": {"output": {"sum": {"$sum": "$key"}}}}],
    [{"$fill": {"sortBy": {"key": 1}, "output": {"a": {"method": "linear"}}}}],
    [{"$fill": {"output": {"a": {"value": 1}}}}],
    [{"$densify": {"field": "key", "range": {"step": 50, "bounds": "full"}}}],
    [{"$set": {"a": {"$divide": ["$key", 0]}}}],
    [join("ranged"), {"$set": {"a": {"$divide": ["$key", 0]}}}],
]
OF_CHANGES: Final[list[list[Document]]] = [
    [{"$changeStream": {}}, {"$out": "ranged"}],
    [{"$match": {}}, {"$changeStream": {}}],
]


def said(reply: Document) -> tuple[object, ...]:
    """Summarize the end of a read: its error, the number of documents in its first batch, or that it was explained."""
    if reply["ok"]:
        cursor = reply.get("cursor")
        return ("explained",) if cursor is None else ("documents", len(cursor["firstBatch"]), bool(cursor["id"]))
    return reply["code"], reply["codeName"], reply["errmsg"]


def differing(shard: Client, ours: Client, database: str, commands: list[Document]) -> list[tuple[object, ...]]:
    """The commands that end differently, with both endings."""
    pairs = [(each, said(run(shard, database, as_mongos(each))), said(run(ours, database, each))) for each in commands]
    return [pair for pair in pairs if pair[1] != pair[2]]


def test_finds(shard: Client, filled: Database[Document]) -> None:
    names = ("ranged", "plain", "missing", "view_of_ranged", "view_of_plain")
    commands = [{"find": name, **arguments} for name in names for arguments in FINDS]
    assert differing(shard, filled.client, filled.name, commands) == []


def test_explained_finds(shard: Client, filled: Database[Document]) -> None:
    found = []
    for name in ("ranged", "plain", "view_of_ranged", "view_of_plain"):
        for arguments in ({"ntoreturn": 3}, *RESUMING):
            if not arguments.keys().isdisjoint(("filter", "projection", "tailable", "unknown")):
                continue  # one of the shards reports an error in these, before or after the others
            inner = {"find": name, **arguments}
            theirs = run(shard, filled.name, {"explain": as_mongos(inner)})
            ours = run(filled.client, filled.name, {"explain": inner})
            if said(ours) != said(theirs):
                found.append((inner, said(theirs), said(ours)))
    assert found == []


def test_explained_find_from_a_binary_record_id(filled: Database[Document]) -> None:
    """A mongod would abort, so the router refuses it."""
    refused = run(filled.client, filled.name, {"explain": {"find": "ranged", **BINARY_TOKEN}})
    assert said(refused) == (2, "BadValue", "Queries on mongoS may not request or provide a resume token")


NAMES: Final = ("ranged", "plain", "missing", 1)


def aggregations(*pipelines: list[Document]) -> list[Document]:
    return [{"aggregate": name, "pipeline": pipeline, "cursor": {}} for name in NAMES for pipeline in pipelines]


@pytest.mark.parametrize("suffix", ["", "_missing"])
def test_aggregations(shard: Client, filled: Database[Document], suffix: str) -> None:
    """Of a missing database, a mongos looks at little more than the names of the stages."""
    database = filled.name + suffix
    commands = aggregations(*PIPELINES, *(OF_CHANGES if suffix else ()))
    assert differing(shard, filled.client, database, commands) == []
    assert database not in filled.client.list_database_names() or not suffix


def test_openings_of_writing_aggregations(shard: Client, filled: Database[Document]) -> None:
    """With ``batchSize: 0`` they are checked at once, and write at the first ``getMore``."""
    writing = [each for each in PIPELINES if each and each[-1].keys() & {"$out", "$merge"}]
    writing += [[{"$match": {"$unknown": 1}}, {"$out": "x"}], [{"$out": "x"}], [{"$merge": "x"}]]
    commands: list[Document] = [
        {"aggregate": name, "pipeline": pipeline, "cursor": {"batchSize": 0}, **more}
        for name in NAMES[:-1]
        for pipeline in writing
        for more in ({}, {"hint": "_id_"}, {"collation": {"locale": "unknown"}})
    ]
    commands += [{"aggregate": "ranged", "pipeline": writing[-1], "cursor": {"batchSize": 0}, "unknown": 1}]
    assert differing(shard, filled.client, filled.name, commands) == []
    assert "x" not in filled.list_collection_names()


@pytest.mark.parametrize("suffix", ["", "_missing"])
@pytest.mark.parametrize(
    "more", [{}, {"allowDiskUse": True}, {"allowDiskUse": False}, {"collation": CASELESS}], ids=str
)
def test_stages_after_documents(shard: Client, filled: Database[Document], more: Document, suffix: str) -> None:
    """A mongos must run them itself, but cannot run all stages."""
    commands: list[Document] = [
        {"aggregate": 1, "pipeline": [DOCUMENTS, *stages], "cursor": {}, **more} for stages in AFTER_DOCUMENTS
    ]
    commands += [{"aggregate": 1, "pipeline": [{"$documents": wrong}], "cursor": {}, **more} for wrong in ("x", 5)]
    found = differing(shard, filled.client, filled.name + suffix, commands)
    assert found == []


def test_merge_into_a_missing_database(shard: Client, filled: Database[Document]) -> None:
    merge = {"$merge": {"into": {"db": "interop_merged", "coll": "c"}}}
    reading: Document = {"aggregate": "ranged", "pipeline": [merge], "cursor": {}}
    assert differing(shard, filled.client, filled.name, [reading, {**reading, "aggregate": "plain"}]) == []


def test_aggregations_of_admin(shard: Client, filled: Database[Document]) -> None:
    pipelines = (each for each in PIPELINES if each not in ([{"$listCatalog": {}}], [OUT_ELSEWHERE]))
    assert differing(shard, filled.client, "admin", aggregations(*pipelines)) == []


@pytest.mark.parametrize("suffix", ["", "_missing"])
def test_explained_aggregations(shard: Client, filled: Database[Document], suffix: str) -> None:
    database, found = filled.name + suffix, []
    for each in aggregations(*PIPELINES, *([] if suffix else [[{"$changeStream": {}}]])):
        theirs = run(shard, database, {"explain": as_mongos(each)})
        ours = run(filled.client, database, {"explain": each})
        if said(ours) != said(theirs):
            found.append((each, said(theirs), said(ours)))
    assert found == []
