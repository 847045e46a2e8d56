"""Every form of join, from every kind of collection to every other, under every collation, compared with one mongod."""

from collections.abc import Iterator
from typing import Any, Final

import pytest
from pymongo.database import Database
from pymongo.errors import OperationFailure

from tests.integration.joins.test_joins import Both, Pipeline, in_any_order
from tests.integration.sharded import LOWER, SPLIT_AT, UPPER, Document, shard_collection
from tests.local_cluster import Client

FOLDING: Final = {"locale": "en", "strength": 2}
"""A collation by which ``a`` equals ``A``."""

SHARDED: Final = {"sharded": SPLIT_AT, "upper": 0, "sharded_folding": SPLIT_AT}
"""Collections that are sharded, and the key from which they are on the upper shard."""
LOCALS: Final = ("sharded", "upper", "plain", "view_of_sharded")
FOREIGN: Final = ("sharded", "plain", "view_of_sharded", "view_of_plain", "view_of_view", "joining_view", "missing")
COLLATIONS: Final = ("none", "of the collection", "of the command")


def documents(prefix: str, count: int = 12) -> list[Document]:
    """Documents whose strings differ in case, and whose numbers lead from one to the next."""
    letters = "aAbBc"
    return [
        {
            "_id": f"{prefix}{number}",
            "key": number * 90,
            "s": letters[number % 5],
            "t": [letters[(number + 1) % 5], letters[(number + 3) % 5]],
            "n": number,
            "next": number + 3,
        }
        for number in range(count)
    ]


@pytest.fixture(scope="module")
def all_kinds(client: Client) -> Iterator[Both]:
    """All kinds of collections in one database; in the other, the same ones on one shard."""
    sharded, plain = client["join_matrix"], client["join_matrix_plain"]
    for database in (sharded, plain):
        client.drop_database(database.name)
        client.admin.command("enableSharding", database.name, primaryShard=LOWER)
        for name in ("sharded_folding", "plain_folding"):
            database.create_collection(name, collation=FOLDING)
    for name, upper_from in SHARDED.items():
        shard_collection(sharded, name, {"key": 1}, collation={"locale": "simple"})
        if upper_from:
            client.admin.command("split", f"{sharded.name}.{name}", middle={"key": upper_from})
        client.admin.command("moveChunk", f"{sharded.name}.{name}", find={"key": upper_from}, to=UPPER)
    for database in (sharded, plain):
        for name in (*SHARDED, "plain", "plain_folding"):
            database[name].insert_many(documents(name))
        views: dict[str, tuple[str, Pipeline]] = {
            "view_of_sharded": ("sharded", [{"$match": {"n": {"$lt": 9}}}]),
            "view_of_plain": ("plain", [{"$set": {"from": "view"}}]),
            "view_of_view": ("view_of_sharded", [{"$match": {"n": {"$gt": 1}}}]),
            "joining_view": (
                "plain",
                [{"$lookup": {"from": "sharded", "localField": "n", "foreignField": "next", "as": "up"}}],
            ),
        }
        for view, (on, pipeline) in views.items():
            database.create_collection(view, viewOn=on, pipeline=pipeline)
        database.create_collection("view_folding", viewOn="sharded_folding", pipeline=[], collation=FOLDING)
    yield sharded, plain
    for database in (sharded, plain):
        client.drop_database(database.name)


def joins(foreign: str) -> dict[str, dict[str, Any]]:
    """One stage of each form."""
    of_equal_letter: Pipeline = [{"$match": {"$expr": {"$eq": ["$s", "$$letter"]}}}]
    graph = {"from": foreign, "startWith": "$t", "connectFromField": "t", "connectToField": "s", "as": "r"}
    steps = {"from": foreign, "startWith": "$n", "connectFromField": "next", "connectToField": "n", "as": "r"}
    equal = {"from": foreign, "localField": "t", "foreignField": "s", "as": "r"}
    return {
        "equality": {"$lookup": equal},
        "equality and pipeline": {"$lookup": {**equal, "pipeline": [{"$match": {"s": {"$ne": "A"}}}]}},
        "correlated": {"$lookup": {"from": foreign, "let": {"letter": "$s"}, "pipeline": of_equal_letter, "as": "r"}},
        "uncorrelated": {"$lookup": {"from": foreign, "pipeline": [{"$match": {"s": "a"}}], "as": "r"}},
        "graph": {"$graphLookup": {**graph, "maxDepth": 1, "restrictSearchWithMatch": {"s": {"$ne": "C"}}}},
        "graph with depth": {"$graphLookup": {**steps, "depthField": "depth"}},
        "union": {"$unionWith": {"coll": foreign, "pipeline": [{"$match": {"s": "a"}}]}},
        "union of all": {"$unionWith": foreign},
    }


def answer(database: Database[Document], local: str, pipeline: Pipeline, collation: str) -> list[str]:
    """The documents that an aggregation returns, in no particular order, or its error code."""
    options: dict[str, Any] = {"collation": FOLDING} if collation == "of the command" else {}
    try:
        return sorted(str(in_any_order(each)) for each in database[local].aggregate(pipeline, **options))
    except OperationFailure as failure:
        return ["error", str(failure.code)]


@pytest.mark.parametrize("collation", COLLATIONS)
@pytest.mark.parametrize("foreign", FOREIGN)
@pytest.mark.parametrize("local", LOCALS)
@pytest.mark.parametrize("is_in_facet", [False, True], ids=["alone", "in a facet"])
@pytest.mark.parametrize("form", list(joins("")))
@pytest.mark.matrix(share=0.6)
def test_joins(all_kinds: Both, form: str, local: str, foreign: str, collation: str, *, is_in_facet: bool) -> None:
    if collation == "of the collection":
        local = {"plain": "plain_folding", "view_of_sharded": "view_folding"}.get(local, "sharded_folding")
    stage = joins(foreign)[form]
    pipeline: Pipeline = [{"$facet": {"all": [stage], "n": [{"$count": "n"}]}}] if is_in_facet else [stage]
    sharded, plain = (answer(database, local, pipeline, collation) for database in all_kinds)
    assert sharded == plain
