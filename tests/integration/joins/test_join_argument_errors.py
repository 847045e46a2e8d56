"""Wrong pipelines that name collections which no single shard has: they are refused with mongod's code and message."""

from collections.abc import Iterator
from typing import Any, Final

import pytest
from pymongo.database import Database
from pymongo.errors import OperationFailure

from tests.integration.sharded import UPPER, Document, shard_by_range
from tests.local_cluster import Client

ELSEWHERE: Final = "join_argument_errors_elsewhere"


@pytest.fixture(scope="module")
def data(client: Client) -> Iterator[Database[Document]]:
    """Two collections on both shards, one on the lower shard, and one in a database on the upper shard."""
    database = client["join_argument_errors"]
    shard_by_range(database)
    shard_by_range(database, "other")
    fill(database)
    client.admin.command("enableSharding", ELSEWHERE, primaryShard=UPPER)
    client[ELSEWHERE].target.insert_one({"_id": 1})
    yield database
    client.drop_database(database.name)
    client.drop_database(ELSEWHERE)


@pytest.fixture(scope="module")
def alone(lower_mongod: Client) -> Iterator[Database[Document]]:
    """Collections of the same names on one mongod alone."""
    database = lower_mongod["join_argument_errors_alone"]
    fill(database)
    lower_mongod[f"{ELSEWHERE}_alone"].target.insert_one({"_id": 1})
    yield database
    lower_mongod.drop_database(database.name)
    lower_mongod.drop_database(f"{ELSEWHERE}_alone")


def fill(database: Database[Document]) -> None:
    database.ranged.insert_many([{"_id": n, "key": n * 25} for n in range(40)])
    database.other.insert_many([{"_id": n, "key": n * 25} for n in range(40)])
    database.unsharded.insert_many([{"_id": n, "key": n * 25} for n in range(10)])


def outcome(database: Database[Document], collection: object, stages: list[Any], **arguments: object) -> object:
    """Code, name and message of the error; if there is none, the number of documents, or None for an explanation."""
    try:
        reply = database.command({"aggregate": collection, "pipeline": stages, "cursor": {}, **arguments})
    except OperationFailure as error:
        details = error.details or {}
        message = str(details.get("errmsg")).replace(f"{database.name}.", "DB.").replace("_alone", "")
        return error.code, details.get("codeName"), message
    else:
        return len(reply["cursor"]["firstBatch"]) if "cursor" in reply else None


BOTH: Final = {"localField": "key", "foreignField": "key", "as": "x"}
GRAPH: Final = {"startWith": "$key", "connectFromField": "key", "connectToField": "key", "as": "x"}

LOOKUPS: Final[list[Any]] = [
    3,
    "other",
    None,
    [],
    {},
    {"from": "other"},
    {"from": "other", "as": "x"},
    {"from": "other", "localField": "a", "as": "x"},
    {"from": "other", "foreignField": "a", "as": "x"},
    {"from": "other", "localField": "a", "foreignField": "b"},
    {**BOTH, "from": "other", "as": 3},
    {**BOTH, "from": "other", "as": ""},
    {**BOTH, "from": "other", "as": "$x"},
    {**BOTH, "from": "other", "as": "a..b"},
    {**BOTH, "from": "other", "as": "a."},
    {**BOTH, "from": "other", "localField": 3},
    {**BOTH, "from": "other", "localField": ""},
    {**BOTH, "from": "other", "localField": "$a"},
    {**BOTH, "from": "other", "foreignField": "a..b"},
    {**BOTH, "from": "other", "foreignField": {"a": 1}},
    {**BOTH, "from": 3},
    {**BOTH, "from": ""},
    {**BOTH, "from": {"db": "a", "coll": "other"}},
    {**BOTH, "from": "other", "unknown": 1},
    {**BOTH, "from": "other", "let": {"a": 1}},
    {**BOTH, "from": "other", "let": 3, "pipeline": []},
    {**BOTH, "from": "other", "let": {"A": 1}, "pipeline": []},
    {**BOTH, "from": "other", "let": {"a.b": 1}, "pipeline": []},
    {**BOTH, "from": "other", "let": {"a": "$$b"}, "pipeline": []},
    {**BOTH, "from": "other", "let": {"a": {"$unknown": 1}}, "pipeline": []},
    {**BOTH, "from": "other", "pipeline": 3},
    {**BOTH, "from": "other", "pipeline": {}},
    {"from": "other", "as": "x", "pipeline": None},
    {"from": "other", "as": "x", "pipeline": [3]},
    {"from": "other", "as": "x", "pipeline": [{}]},
    {"from": "other", "as": "x", "pipeline": [{"$match": 3}]},
    {"from": "other", "as": "x", "pipeline": [{"$match": {"$unknown": 3}}]},
    {"from": "other", "as": "x", "pipeline": [{"$match": {"$expr": {"$eq": ["$a", "$$missing"]}}}]},
    {"from": "other", "as": "x", "pipeline": [{"$unknown": 3}]},
    {"from": "other", "as": "x", "pipeline": [{"$out": "z"}]},
    {"from": "other", "as": "x", "pipeline": [{"$merge": "z"}]},
    {"from": "other", "as": "x", "pipeline": [{"$facet": {"a": [{"$facet": {"b": []}}]}}]},
    {"from": "other", "as": "x", "pipeline": [{"$limit": 0}]},
    {"from": "other", "as": "x", "pipeline": [{"$limit": 1}, {"$geoNear": {"near": [0, 0], "distanceField": "d"}}]},
    {"from": "other", "as": "x", "pipeline": [{"$limit": 1}, {"$documents": [{"a": 1}]}]},
    {"from": "other", "as": "x", "pipeline": [{"$changeStream": {}}]},
    {"from": "other", "as": "x", "pipeline": [{"$lookup": {"from": "other"}}]},
    {"from": "other", "as": "x", "pipeline": [{"$lookup": {"from": "other", "as": "y", "pipeline": [{"$bad": 1}]}}]},
    {"from": "other", "as": "x", "pipeline": [{"$group": {"_id": {"$divide": [1, 0]}}}]},
    {"from": "other", "as": "x", "pipeline": [{"$group": {"n": {"$sum": 1}}}]},
    {"from": "other", "as": "x", "pipeline": [{"$project": {"a": 1, "b": 0}}]},
    {"as": "x", "pipeline": [{"$match": {}}]},
    {"as": "x", "pipeline": []},
    {"as": "x", "pipeline": [{"$documents": 3}]},
    {"from": "system.views", "as": "x", "pipeline": [{"$unknown": 1}]},
    {"from": "a\0b", "as": "x", "pipeline": []},
]

GRAPH_LOOKUPS: Final[list[Any]] = [
    3,
    {},
    {"from": "other"},
    {**GRAPH, "from": 3},
    {**GRAPH, "from": ""},
    {**GRAPH, "from": "other", "as": 3},
    {**GRAPH, "from": "other", "as": "$x"},
    {**GRAPH, "from": "other", "connectFromField": 3},
    {**GRAPH, "from": "other", "connectToField": "$a"},
    {**GRAPH, "from": "other", "startWith": {"$unknown": 1}},
    {**GRAPH, "from": "other", "startWith": "$$missing"},
    {**GRAPH, "from": "other", "maxDepth": "a"},
    {**GRAPH, "from": "other", "maxDepth": -1},
    {**GRAPH, "from": "other", "maxDepth": 1.5},
    {**GRAPH, "from": "other", "depthField": 3},
    {**GRAPH, "from": "other", "depthField": "$d"},
    {**GRAPH, "from": "other", "restrictSearchWithMatch": 3},
    {**GRAPH, "from": "other", "restrictSearchWithMatch": {"$unknown": 3}},
    {**GRAPH, "from": "other", "unknown": 3},
    {"from": "other", "connectFromField": "key", "connectToField": "key", "as": "x"},
    {"from": "other", "startWith": "$key", "connectToField": "key", "as": "x"},
    {"from": "other", "startWith": "$key", "connectFromField": "key", "connectToField": "key"},
]

UNIONS: Final[list[Any]] = [
    3,
    {},
    {"coll": 3},
    {"coll": "other", "pipeline": 3},
    {"coll": "other", "unknown": 3},
    {"coll": "other", "pipeline": [{"$unknown": 1}]},
    {"coll": "other", "pipeline": [{"$out": "z"}]},
    {"coll": "other", "pipeline": [{"$match": {}}, {"$merge": "z"}]},
    {"coll": "other", "pipeline": [{"$documents": 3}]},
    {"pipeline": []},
    {"pipeline": [{"$match": {}}]},
    {"pipeline": [{"$documents": 3}]},
    {"coll": "other", "pipeline": [{"$lookup": {"from": "other"}}]},
    {"coll": "other", "pipeline": [{"$limit": -1}]},
]

MERGES: Final[list[Any]] = [
    3,
    {},
    {"into": 3},
    {"into": ""},
    {"into": "other", "on": 3},
    {"into": "other", "on": []},
    {"into": "other", "on": ["a", "a"]},
    {"into": "other", "on": "unindexed"},
    {"into": "other", "on": ["_id", 3]},
    {"into": "other", "whenMatched": "unknown"},
    {"into": "other", "whenMatched": 3},
    {"into": "other", "whenMatched": [{"$unknown": 1}]},
    {"into": "other", "whenMatched": [{"$match": {}}]},
    {"into": "other", "whenMatched": [{"$set": {"a": "$$missing"}}]},
    {"into": "other", "whenNotMatched": "unknown"},
    {"into": "other", "whenNotMatched": 3},
    {"into": "other", "whenMatched": "replace", "whenNotMatched": "nothing"},
    {"into": "other", "let": {"a": 1}},
    {"into": "other", "let": 3, "whenMatched": []},
    {"into": "other", "let": {"A": 1}, "whenMatched": []},
    {"into": "other", "let": {"new": 1}, "whenMatched": []},
    {"into": "other", "unknown": 3},
    {"into": {"coll": 3}},
    {"into": {"db": "a"}},
    {"into": {"db": "", "coll": "other"}},
    {"into": {"db": "admin", "coll": "other"}},
    {"into": {"db": ELSEWHERE, "coll": "target"}, "on": "unindexed"},
    {"into": {"db": ELSEWHERE, "coll": "target"}, "whenMatched": "unknown"},
    {"into": {"db": ELSEWHERE, "coll": "target"}, "whenMatched": [{"$unknown": 3}]},
    {"into": "system.views"},
]

OUTS: Final[list[Any]] = [
    3,
    {},
    "",
    {"db": 3, "coll": "a"},
    {"db": "a"},
    {"coll": "a"},
    {"db": "a", "coll": "b", "c": 1},
    {"db": "admin", "coll": "a"},
    {"db": "config", "coll": "a"},
    "system.views",
    {"db": ELSEWHERE, "coll": "system.views"},
    {"db": ELSEWHERE, "coll": ""},
    {"db": ELSEWHERE, "coll": 3},
]

GOOD: Final = {"$lookup": {**BOTH, "from": "other"}}

ORDERS: Final[list[list[Any]]] = [
    [GOOD, {"$unknown": 1}],
    [GOOD, {"$limit": 0}],
    [GOOD, {"$match": {"$unknown": 1}}],
    [GOOD, {"$group": {}}],
    [GOOD, {"$project": {"a": {"$unknown": 1}}}],
    [GOOD, {"$out": "z"}, {"$limit": 1}],
    [GOOD, {"$merge": "other"}, {"$limit": 1}],
    [GOOD, {"$geoNear": {"near": [0, 0], "distanceField": "d"}}],
    [GOOD, {"$collStats": {}}],
    [GOOD, {"$documents": []}],
    [GOOD, {"$facet": {}}],
    [GOOD, {"$facet": {"a": [{"$lookup": {"from": "other"}}]}}],
    [{"$facet": {"a": [GOOD, {"$out": "z"}]}}],
    [{"$facet": {"a": [{"$unionWith": 3}]}}],
    [{"$facet": {"a": [GOOD], "b": [{"$limit": 0}]}}],
    [{"$lookup": {"from": "other"}}, {"$unknown": 1}],
    [{"$lookup": {**BOTH, "from": "other", "as": 3}}, {"$unionWith": 3}],
    [{"$unionWith": {"coll": "other", "pipeline": [{"$unknown": 1}]}}, {"$lookup": 3}],
    [{"$limit": 0}, {"$lookup": {"from": "other"}}],
    [{"$match": {"$unknown": 1}}, {"$lookup": {"from": "other"}}],
    [GOOD, {"$merge": {"into": "other", "whenMatched": "unknown"}}],
    [GOOD, {"$merge": {"into": "unsharded", "on": "unindexed"}}],
    [GOOD, {"$out": 3}],
    [GOOD, {"$out": {"db": "a"}}],
    [GOOD, 3],
    [GOOD, {}],
    [GOOD, {"$match": {}, "$limit": 3}],
    [GOOD, {"$addFields": {"x.y": 1, "x": 2}}],
    [GOOD, {"$sort": {"a": 3}}],
    [GOOD, {"$sortByCount": 3}],
    [GOOD, {"$unset": 3}],
    [GOOD, {"$setWindowFields": {"output": {"r": {"$rank": {}}}}}],
    [{"$match": {"key": -1}}, GOOD, {"$sort": {}}],
    [{"$match": {"key": -1}}, {"$lookup": {**BOTH, "from": "other", "unknown": 3}}],
    [{"$match": {"key": -1}}, {"$merge": {"into": "other", "unknown": 3}}],
    [{"$match": {"key": -1}}, {"$unionWith": {"coll": "other", "pipeline": [{"$unknown": 1}]}}],
]

WRONG: Final[list[list[Any]]] = [
    *([{"$lookup": each}] for each in LOOKUPS),
    *([{"$graphLookup": each}] for each in GRAPH_LOOKUPS),
    *([{"$unionWith": each}] for each in UNIONS),
    *([{"$merge": each}] for each in MERGES),
    *([GOOD, {"$merge": each}] for each in MERGES),
    *([{"$out": each}] for each in OUTS),
    *([GOOD, {"$out": each}] for each in OUTS),
    *ORDERS,
]


RIGHT: Final[list[list[Any]]] = [
    [{"$limit": 2}, {"$unionWith": {"coll": "other", "pipeline": [{"$documents": [{"a": 1}]}, {"$set": {"b": 1}}]}}],
    [{"$lookup": {"from": "other", "as": "x", "pipeline": [{"$documents": [{"a": 1}]}]}}],
    [{"$limit": 2}, GOOD, {"$merge": {"into": {"db": "", "coll": "other"}}}],
]

CODES_OF_SHARDED: Final = {51183: 51190}
"""mongos has other codes where the target of a ``$merge`` is sharded and has no unique index on its fields."""


@pytest.mark.parametrize("source", ["ranged", "unsharded"])
def test_pipelines_are_refused_as_by_mongod(data: Database[Document], alone: Database[Document], source: str) -> None:
    different = differences(data, alone, source, [*WRONG, *RIGHT])
    assert not different, "\n".join(different)


def test_pipelines_are_refused_as_by_mongod_if_they_are_only_explained(
    data: Database[Document], alone: Database[Document]
) -> None:
    different = differences(data, alone, "ranged", [*WRONG, *RIGHT], explain=True)
    assert not different, "\n".join(different)


def differences(
    data: Database[Document], alone: Database[Document], source: str, pipelines: list[list[Any]], **arguments: object
) -> list[str]:
    """The pipelines with another outcome on the cluster than on a mongod alone."""
    return [
        f"{stages}\n  expected {expected}\n  but got  {found}"
        for stages in pipelines
        if (expected := outcome(alone, source, stages, **arguments))
        != (found := outcome(data, source, stages, **arguments))
        and not _is_of_sharded(expected, found)
    ]


def _is_of_sharded(expected: object, found: object) -> bool:
    return (
        isinstance(expected, tuple)
        and isinstance(found, tuple)
        and (CODES_OF_SHARDED.get(expected[0]), expected[2]) == (found[0], found[2])
    )


def test_joined_pipelines_are_checked_against_the_stable_api(data: Database[Document]) -> None:
    strict = {"apiVersion": "1", "apiStrict": True}
    assert outcome(data, "ranged", [GOOD, {"$limit": 3}], **strict) == 3
    for stages in ([GOOD, {"$_internalInhibitOptimization": {}}], [{"$_internalInhibitOptimization": {}}, GOOD]):
        refused = outcome(data, "ranged", stages, **strict)
        assert isinstance(refused, tuple)
        assert refused[:2] == (323, "APIStrictError")


def test_a_text_index_is_still_required_and_used(data: Database[Document]) -> None:
    searching: Document = {"$match": {"$text": {"$search": "word"}}}
    data.ranged.create_index({"text": "text"})
    data.ranged.update_many({"key": {"$lt": 100}}, {"$set": {"text": "word"}})
    scored: Document = {"$set": {"score": {"$meta": "textScore"}}}
    assert outcome(data, "ranged", [searching, GOOD, scored]) == 4
    data.ranged.drop_index("text_text")
    refused = outcome(data, "ranged", [searching, GOOD])
    assert isinstance(refused, tuple)
    assert refused[0] == 27
