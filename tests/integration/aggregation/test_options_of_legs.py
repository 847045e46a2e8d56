"""The options of an aggregation are in every command that the shards' mongods run, as their profilers see it."""

from collections.abc import Iterator
from typing import Any, Final

import pytest
from pymongo.database import Database

from tests.integration.profiles import Profiles, profiling
from tests.integration.sharded import UPPER, Document, shard_by_hash, shard_by_range
from tests.local_cluster import Client

COLLATION: Final[Document] = {"locale": "en", "strength": 2}
FOR_ALL: Final[Document] = {"allowDiskUse": True, "collation": COLLATION, "let": {"low": 3}, "maxTimeMS": 60_000}
CONCERN: Final[Document] = {"level": "majority"}
DOCUMENTS: Final = 10
EQUAL: Final[Document] = {"localField": "key", "foreignField": "key"}
LOOKUP: Final[Document] = {"$lookup": {"from": "hashed", **EQUAL, "as": "j"}}

PIPELINES: Final[dict[str, tuple[list[Document], int]]] = {
    "merged by the router": ([{"$sort": {"key": 1}}], 2),
    "merged by a shard": ([{"$match": {"$expr": {"$gt": ["$key", "$$low"]}}}, {"$group": {"_id": "$key"}}], 3),
    "joined": ([LOOKUP], 5),
    "joined by a pipeline": ([{"$lookup": {"from": "hashed", "pipeline": [{"$limit": 1}], "as": "j"}}], 5),
    "joined by a pipeline with variables": (
        [
            {
                "$lookup": {
                    "from": "hashed",
                    "let": {"key": "$key"},
                    "pipeline": [{"$match": {"$expr": {"$eq": ["$key", "$$key"]}}}],
                    "as": "j",
                }
            }
        ],
        5,
    ),
    "joined as a graph": (
        [
            {
                "$graphLookup": {
                    "from": "hashed",
                    "startWith": "$key",
                    "connectFromField": "next",
                    "connectToField": "key",
                    "as": "j",
                }
            }
        ],
        5,
    ),
    "united": ([{"$unionWith": "hashed"}, {"$sort": {"_id": 1}}], 4),
    "in a facet": (
        [
            {"$facet": {"joined": [LOOKUP], "counted": [{"$count": "n"}]}},
            {"$unwind": "$joined"},
            {"$replaceWith": "$joined"},
        ],
        5,
    ),
    "merged by one shard after the other": (
        [
            {"$match": {"$expr": {"$gte": ["$key", "$$low"]}}},
            {"$group": {"_id": "$key"}},
            {"$lookup": {"from": "plain", "localField": "_id", "foreignField": "key", "as": "j"}},
        ],
        3,
    ),
}
"""Pipelines, and how many aggregations they take at least."""


@pytest.fixture
def profiled(database: Database[Document], lower_mongod: Client, upper_mongod: Client) -> Iterator[Profiles]:
    """The profiles of both shards."""
    for collection in (shard_by_range(database), shard_by_hash(database), database.plain):
        collection.insert_many({"_id": number, "key": number * 100} for number in range(DOCUMENTS))
    with profiling(database, lower_mongod, upper_mongod) as profiles:
        yield profiles


def first_two_batches(database: Database[Document], command: Document, comment: Document) -> list[int]:
    """Return the sizes of the first two batches, of 2 and of 3."""
    cursor = database.command({**command, "cursor": {"batchSize": 2}, "comment": comment})["cursor"]
    name = cursor["ns"].partition(".")[2]
    more = {"getMore": cursor["id"], "collection": name, "batchSize": 3, "comment": comment}
    sizes = [len(cursor["firstBatch"]), len(database.command(more)["cursor"]["nextBatch"])]
    database.command("killCursors", name, cursors=[cursor["id"]])
    return sizes


def check_options(leg: Document, options: Document) -> None:
    """The command has the options, if perhaps with defaults of a collation and the variables of a nested pipeline."""
    for name in ("let", "collation"):
        leg = {**leg, name: {field: value for field, value in leg[name].items() if field in options[name]}}
    assert {name: leg.get(name) for name in options} == options


def check_legs(legs: list[Document], options: Document) -> None:
    """Check that all commands have the options, reads of a collection the read concern, and the first ones the hint."""
    for leg in legs:
        check_options(leg, options)
        # What joins documents that are handed to it reads no collection.
        assert leg.get("readConcern", {}).get("level") == (None if leg["aggregate"] == 1 else CONCERN["level"])
        is_first = leg["aggregate"] == "ranged" and "$mergeCursors" not in str(leg["pipeline"])
        assert leg.get("hint") == ({"_id": 1} if is_first else None)


@pytest.mark.parametrize("source", ["ranged", "view"])
def test_every_command_has_the_options(database: Database[Document], profiled: Profiles, source: str) -> None:
    database.create_collection(
        "view", viewOn="ranged", pipeline=[{"$match": {"key": {"$gte": 0}}}], collation=COLLATION
    )
    for name, (pipeline, legs_min) in PIPELINES.items():
        comment = {"of": name, "on": source}
        command = {"aggregate": source, "pipeline": pipeline, "hint": {"_id": 1}, "readConcern": CONCERN, **FOR_ALL}
        assert first_two_batches(database, command, comment) == [2, 3], name
        legs = profiled.aggregations(comment)
        assert len(legs) >= legs_min, name
        check_legs(legs, {**FOR_ALL, "comment": comment})


def test_every_command_that_writes_has_the_options(
    client: Client, database: Database[Document], profiled: Profiles, upper_mongod: Client
) -> None:
    """Of a chain of two merging shards, and of the router that writes into a sharded collection."""
    elsewhere = client[f"{database.name}_elsewhere"]
    client.admin.command("enableSharding", elsewhere.name, primaryShard=UPPER)
    join: Document = {"$lookup": {"from": "plain", **EQUAL, "as": "j"}}
    targets = {"elsewhere": {"db": elsewhere.name, "coll": "written"}, "sharded": "target"}
    shard_by_range(database, "target")
    concern = {"w": 1, "wtimeout": 54_321}
    try:
        with profiling(elsewhere, upper_mongod) as others:
            for name, into in targets.items():
                comment = {"of": name}
                merge = {"$merge": {"into": into, "whenMatched": "fail"}}
                command: Document = {"aggregate": "ranged", "pipeline": [join, merge], "hint": {"_id": 1}, **FOR_ALL}
                database.command({**command, "comment": comment, "cursor": {}, "writeConcern": concern})
                legs = [*profiled.aggregations(comment), *others.aggregations(comment)]
                assert len(legs) >= 3, name
                for leg in legs:
                    check_options(leg, {**FOR_ALL, "comment": comment})
    finally:
        client.drop_database(elsewhere.name)
    inserts = profiled.entries({"op": "insert", "ns": f"{database.name}.target"})
    assert len(inserts) >= 2
    for each in inserts:
        assert each["command"].items() >= {"comment": {"of": "sharded"}, "maxTimeMS": 60_000}.items()
        assert each["command"]["writeConcern"]["wtimeout"] == concern["wtimeout"]
    assert database.target.count_documents({}) == DOCUMENTS


def test_every_command_of_a_map_reduce_has_the_options(database: Database[Document], profiled: Profiles) -> None:
    functions = {"map": "function() { emit(this.key, 1); }", "reduce": "function(key, values) { return 1; }"}
    options: dict[str, Any] = {"comment": "mapped", "collation": COLLATION, "maxTimeMS": 60_000}
    reply = database.command({"mapReduce": "ranged", **functions, "out": {"inline": 1}, **options})
    assert len(reply["results"]) == DOCUMENTS
    legs = profiled.aggregations("mapped")
    assert len(legs) >= 3
    for leg in legs:
        assert leg.items() >= {**options, "allowDiskUse": True}.items()
