"""Joins beyond the router's memory or the size of one command, compared with a mongod's."""

from collections.abc import Iterator
from typing import Any, Final

import pytest
from pymongo.database import Database
from pymongo.errors import OperationFailure

from tests.integration.joins.test_joins import Both, Pipeline
from tests.integration.sharded import LOWER, Document, shard_by_hash
from tests.local_cluster import Client

MEGABYTE: Final = "x" * 1_000_000
LARGE: Final = 12
"""Number of megabyte documents in each group: more than may be handed over, less than a document can have."""
GROUPS: Final = 3


@pytest.fixture(scope="module")
def large(client: Client) -> Iterator[Both]:
    """A database whose large collection is sharded, and one with the same documents on one shard."""
    sharded, plain = client["large_joins"], client["large_joins_plain"]
    for database in (sharded, plain):
        client.drop_database(database.name)
        client.admin.command("enableSharding", database.name, primaryShard=LOWER)
    shard_by_hash(sharded, "other")
    shard_by_hash(sharded, "few")
    for database in (sharded, plain):
        for group in range(GROUPS):
            database.other.insert_many(
                [
                    {"_id": group * LARGE + number, "g": group, "up": group + 1, "pad": MEGABYTE}
                    for number in range(LARGE)
                ]
            )
        database.few.insert_many([{"_id": number, "g": number % GROUPS} for number in range(LARGE)])
        database.local.insert_many([{"_id": group, "g": group} for group in range(GROUPS + 1)])
    yield sharded, plain
    for database in (sharded, plain):
        client.drop_database(database.name)


def answer(database: Database[Document], pipeline: Pipeline) -> list[str]:
    """The documents that an aggregation returns, in no particular order, or its error code."""
    try:
        return sorted(map(str, database.local.aggregate(pipeline)))
    except OperationFailure as failure:
        return ["error", str(failure.code)]


def lookup(**options: Any) -> dict[str, Any]:  # noqa: ANN401
    """A ``$lookup``."""
    return {"$lookup": {"from": "other", "as": "r", **options}}


EQUAL: Final = {"localField": "g", "foreignField": "g"}
OF_GROUP: Final[Pipeline] = [{"$match": {"$expr": {"$eq": ["$g", "$$group"]}}}]
SIZE: Final[dict[str, Any]] = {"$project": {"n": {"$size": "$r"}, "last": {"$max": "$r._id"}}}
UNWIND: Final[dict[str, Any]] = {"$unwind": "$r"}
NUMBERED: Final[dict[str, Any]] = {
    "$unwind": {"path": "$r", "includeArrayIndex": "at.n", "preserveNullAndEmptyArrays": True}
}
JOINS: Final[dict[str, dict[str, Any]]] = {
    "equality": lookup(**EQUAL),
    "equality and pipeline": lookup(
        **EQUAL, let={"group": "$g"}, pipeline=[{"$match": {"$expr": {"$eq": ["$g", "$$group"]}}}]
    ),
    "equality and variable": lookup(**EQUAL, let={"pad": "$pad"}, pipeline=[{"$set": {"type": {"$type": "$$pad"}}}]),
    "equality and join": lookup(
        **EQUAL,
        pipeline=[
            {
                "$lookup": {
                    "from": "other",
                    "localField": "_id",
                    "foreignField": "_id",
                    "pipeline": [{"$project": {"_id": 1}}],
                    "as": "s",
                }
            }
        ],
    ),
    "variables": lookup(let={"group": "$g"}, pipeline=OF_GROUP),
    "one result": lookup(pipeline=[{"$match": {"g": 1}}]),
    "graph": {
        "$graphLookup": {
            "from": "other",
            "startWith": "$g",
            "connectFromField": "none",
            "connectToField": "g",
            "depthField": "depth",
            "as": "r",
        }
    },
}


@pytest.mark.parametrize("tail", [[SIZE], [UNWIND, {"$unset": "r.pad"}], [NUMBERED, {"$project": {"at": 1}}]], ids=str)
@pytest.mark.parametrize("join", JOINS.values(), ids=list(JOINS))
@pytest.mark.matrix(share=0.5)
def test_documents_that_are_joined_alone(large: Both, join: dict[str, Any], tail: Pipeline) -> None:
    pipeline: Pipeline = [join, *tail]
    if "at" in str(tail):
        pipeline.append({"$group": {"_id": "$_id", "at": {"$addToSet": "$at.n"}}})
        pipeline.append({"$set": {"at": {"$sortArray": {"input": "$at", "sortBy": 1}}}})
    sharded, plain = (answer(database, pipeline) for database in large)
    assert sharded == plain
    assert sharded[0] != "error"


@pytest.mark.parametrize("sizes", [(9, 9), (15.9, 0.5), (16.777, 0.0001), (0.5, 15.9)], ids=str)
@pytest.mark.parametrize("tail", [[UNWIND, {"$project": {"r": "$r._id"}}], [{"$project": {"r._id": 1}}]], ids=str)
@pytest.mark.parametrize("join", ["equality", "equality and variable", "variables", "one result", "graph"])
def test_a_document_and_a_match_that_do_not_fit_into_one_command(
    large: Both, join: str, tail: Pipeline, sizes: tuple[float, float]
) -> None:
    own, other = ("x" * int(megabytes * 1_000_000) for megabytes in sizes)
    for database in large:
        database.local.insert_one({"_id": "large", "g": 100, "pad": own})
        database.other.insert_one({"_id": "large", "g": 100, "pad": other})
    stage = {"$lookup": {"from": "other", "as": "r", "pipeline": [{"$match": {"g": 100}}]}}
    pipeline: Pipeline = [{"$match": {"g": 100}}, stage if join == "one result" else JOINS[join], *tail]
    sharded, plain = (answer(database, pipeline) for database in large)
    for database in large:
        database.local.delete_one({"_id": "large"})
        database.other.delete_one({"_id": "large"})
    assert sharded == plain
    assert len(sharded) == 1


@pytest.mark.parametrize("nested", [[{"$count": "n"}], [{"$sort": {"_id": -1}}, {"$limit": 1}, {"$unset": "pad"}]])
def test_a_nested_pipeline_gets_all_that_matches(large: Both, nested: Pipeline) -> None:
    sharded, plain = (answer(database, [lookup(**EQUAL, pipeline=nested)]) for database in large)
    assert sharded == plain


def test_a_document_that_becomes_too_large(large: Both) -> None:
    """A mongod that joins by itself closes the connection."""
    doubled: Pipeline = [lookup(**EQUAL), {"$lookup": {"from": "other", **EQUAL, "as": "s"}}]
    assert answer(large[0], doubled) == ["error", "10334"]


def test_a_group_of_documents_that_are_too_large(large: Both) -> None:
    """The joining mongod returns only the fields that the groups need."""
    doubled: Pipeline = [lookup(**EQUAL), {"$lookup": {"from": "other", **EQUAL, "as": "s"}}]
    sizes = {name: {"$sum": {"$size": f"${name}"}} for name in ("r", "s")}
    group: Pipeline = [{"$group": {"_id": None, **sizes, "last": {"$max": {"$max": "$s._id"}}, "n": {"$count": {}}}}]
    sharded, plain = (answer(database, [*doubled, *group]) for database in large)
    assert sharded == plain
    assert sharded[0] != "error"


@pytest.mark.parametrize(
    "group",
    [
        {"_id": None, "n": {"$sum": 1}, "few": {"$sum": 0.5}},
        {"_id": "$none", "n": {"$sum": {"$size": "$r"}}, "mean": {"$avg": "$g"}},
        {"_id": {"a": "$none"}, "n": {"$count": {}}, "none": {"$first": "$none"}},
        {"_id": {"a": "$none", "b": {"$size": "$r"}}, "all": {"$push": {"g": "$g", "none": "$none"}}},
        {"_id": {"a": {"b": "$none"}}, "all": {"$push": "$none"}, "set": {"$addToSet": "$none"}},
        {"_id": {"$mod": ["$g", 2]}, "low": {"$min": "$g"}, "sum": {"$sum": ["$g"]}},
        {"_id": {"$mod": ["$g", 2]}, "few": {"$firstN": {"input": "$g", "n": 1}}, "n": {"$sum": 1}},
        {"_id": ["$g", "$none"], "merged": {"$mergeObjects": {"k": "$g"}}},
        {"_id": {}, "last": {"$last": "$$ROOT"}},
        {"_id": {"$literal": "$g"}, "at": {"$max": {"$literal": "$r"}}, "text": {"$min": "text"}},
    ],
    ids=str,
)
def test_a_group_of_joined_documents(large: Both, group: Document) -> None:
    join = {"$lookup": {"from": "few", **EQUAL, "as": "r"}}
    sharded, plain = (answer(database, [join, {"$group": group}]) for database in large)
    assert sharded == plain


def test_a_facet_reads_its_input_once_for_all_pipelines(large: Both) -> None:
    """The input has 36 MB, and only one batch of it is held in memory."""
    facet: Pipeline = [
        {"$unionWith": "other"},
        {
            "$facet": {
                "all": [{"$count": "n"}],
                "few": [{"$limit": 2}, {"$count": "n"}],
                "none": [{"$match": {"_id": -1}}],
                "joined": [
                    {"$match": {"pad": {"$exists": False}}},
                    lookup(**EQUAL),
                    UNWIND,
                    {"$group": {"_id": "$_id", "n": {"$sum": 1}}},
                    {"$sort": {"_id": 1}},
                ],
            }
        },
    ]
    sharded, plain = (answer(database, facet) for database in large)
    assert sharded == plain


def test_a_pipeline_of_a_facet_that_fails_ends_the_others(large: Both) -> None:
    failing: Pipeline = [{"$set": {"n": {"$divide": [1, {"$subtract": ["$_id", 30]}]}}}, {"$count": "n"}]
    facet: Pipeline = [
        {"$unionWith": "other"},
        {"$facet": {"failing": failing, "others": [{"$sort": {"pad": 1}}, lookup(**EQUAL), {"$count": "n"}]}},
    ]
    sharded, plain = (answer(database, facet) for database in large)
    assert sharded == plain == ["error", "2"]
