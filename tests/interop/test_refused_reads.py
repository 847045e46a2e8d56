"""Finds and aggregations that MongoDB's own router code refuses are refused by ours, with the same error."""

from typing import Final

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
]


def said(reply: Document) -> tuple[object, ...]:
    """How a read ended: its error, or the number of documents in its first batch."""
    if reply["ok"]:
        return ("documents", len(reply["cursor"]["firstBatch"]))
    return reply["code"], reply["codeName"], reply["errmsg"]


def differing(shard: Client, ours: Client, database: str, commands: list[Document]) -> list[tuple[Document, ...]]:
    """The commands that end differently, with both endings."""
    pairs = [(each, run(shard, database, as_mongos(each)), run(ours, database, each)) for each in commands]
    return [pair for pair in pairs if said(pair[1]) != said(pair[2])]


def test_finds(shard: Client, filled: Database[Document]) -> None:
    names = ("ranged", "plain", "missing", "view_of_ranged", "view_of_plain")
    commands = [{"find": name, **arguments} for name in names for arguments in FINDS]
    assert differing(shard, filled.client, filled.name, commands) == []


def test_explained_finds(shard: Client, filled: Database[Document]) -> None:
    for name in ("ranged", "plain", "view_of_plain"):
        inner = {"find": name, "ntoreturn": 3}
        theirs = run(shard, filled.name, {"explain": as_mongos(inner)})
        assert said(run(filled.client, filled.name, {"explain": inner})) == said(theirs)


def test_aggregations(shard: Client, filled: Database[Document]) -> None:
    names = ("ranged", "plain", "missing", 1)
    commands: list[Document] = [
        {"aggregate": name, "pipeline": pipeline, "cursor": {}} for name in names for pipeline in PIPELINES
    ]
    assert differing(shard, filled.client, filled.name, commands) == []


def test_aggregations_of_a_missing_database(shard: Client, filled: Database[Document]) -> None:
    """Only the names of the stages are looked at, and whether one needs the database."""
    commands: list[Document] = [{"aggregate": "c", "pipeline": pipeline, "cursor": {}} for pipeline in PIPELINES]
    assert differing(shard, filled.client, f"{filled.name}_missing", commands) == []
