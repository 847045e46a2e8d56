"""Finds and aggregations that MongoDB's own router code refuses are refused by ours, with the same error."""

from typing import Final

import pytest
from pymongo.database import Database

from tests.interop.sharded import Document
from tests.interop.test_explanations import as_mongos, filled, run, shard
from tests.local_cluster import Client

__all__ = ["filled", "shard"]

NATURAL: Final[Document] = {"hint": {"$natural": 1}}
SORTED: Final[Document] = {"sort": {"key": 1}}
FINDS: Final[list[Document]] = [
    {"ntoreturn": 3},
    {"$_requestResumeToken": True, **NATURAL},
    {"$_requestResumeToken": False, **NATURAL},
    {"$_requestResumeToken": 1, **NATURAL},
    {"$_resumeAfter": {}},
    {"projection": {"$sortKey": 1}, **SORTED},
    {"projection": {"$sortKey": {"$meta": "sortKey"}}, **SORTED},
    {"projection": {"key": {"$meta": "sortKey"}}, **SORTED},
    {"skip": -1},
    {"maxTimeMS": -1},
]
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
OF_CHANGES: Final[list[list[Document]]] = [
    [{"$changeStream": {}}, {"$out": "ranged"}],
    [{"$match": {}}, {"$changeStream": {}}],
]


def said(reply: Document) -> tuple[object, ...]:
    """Summarize the end of a read: its error, the number of documents in its first batch, or that it was explained."""
    if reply["ok"]:
        return ("documents", len(reply["cursor"]["firstBatch"])) if "cursor" in reply else ("explained",)
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
    for name in ("ranged", "plain", "view_of_plain"):
        inner = {"find": name, "ntoreturn": 3}
        theirs = run(shard, filled.name, {"explain": as_mongos(inner)})
        assert said(run(filled.client, filled.name, {"explain": inner})) == said(theirs)


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
