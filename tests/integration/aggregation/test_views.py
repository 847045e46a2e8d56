"""Views on sharded collections, compared with the same views on an unsharded copy, which a mongod evaluates itself."""

from collections.abc import Mapping
from typing import Any

import pytest
from pymongo.database import Database
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from tests.integration.sharded import LOWER, SPLIT_AT, UPPER, Document, shard_by_range, shard_collection
from tests.local_cluster import Client


@pytest.fixture(scope="module")
def views(routers: tuple[Client, Client]) -> Database[Document]:
    """``sharded`` is on both shards and ``copy`` on one; each has the same kinds of views."""
    client, _ = routers
    client.drop_database("views")
    database = client["views"]
    shard_by_range(database, "sharded")
    documents = [
        {"_id": n, "key": n * 50, "even": n % 2 == 0, "name": "AbcdE"[n % 5], "list": [{"x": n % 3}, n % 4]}
        for n in range(20)
    ]
    for collection in ("sharded", "copy"):
        database[collection].insert_many(documents)
        kinds: dict[str, dict[str, Any]] = {
            "all": {"pipeline": [{"$project": {"list": 1, "key": 1, "even": 1, "name": 1}}]},
            "low": {"pipeline": [{"$match": {"key": 300}}]},
            "even": {"pipeline": [{"$match": {"even": True}}]},
            "collated": {"pipeline": [], "collation": {"locale": "en", "strength": 2}},
            "joined": {"pipeline": [{"$match": {"key": 300}}, {"$unionWith": "other"}]},
            "failing": {"pipeline": [{"$match": {"key": 300}}, {"$set": {"list": {"$divide": ["$key", "$even"]}}}]},
        }
        for kind, options in kinds.items():
            database.create_collection(f"{kind}_{collection}", viewOn=collection, **options)
        nested = [{"$set": {"twice": {"$multiply": ["$key", 2]}}}]
        database.create_collection(f"nested_{collection}", viewOn=f"even_{collection}", pipeline=nested)
    database.other.insert_one({"_id": "other"})
    return database


def answer(database: Database[Document], command: Mapping[str, Any]) -> Document:
    """The relevant result of a command: its error code, or the fields that matter to the client."""
    try:
        reply = database.command(dict(command))
    except OperationFailure as failure:
        return {"code": failure.code, "message": (failure.details or {})["errmsg"]}
    if "values" in reply:
        return {"values": sorted(reply["values"], key=str)}
    if "n" in reply:
        return {"n": reply["n"]}
    cursor = reply["cursor"]
    namespace, documents = cursor["ns"], cursor["firstBatch"]
    while cursor["id"]:
        collection = namespace.partition(".")[2]
        cursor = database.command("getMore", cursor["id"], collection=collection)["cursor"]
        assert cursor["ns"] == namespace
        documents += cursor["nextBatch"]
    return {"ns": namespace.rpartition("_")[0], "documents": documents}


def assert_same(database: Database[Document], command: Mapping[str, Any]) -> Document:
    """Check that a read of the view on the copy and one of the view on the sharded collection give the same result."""
    name, kind = next(iter(command.items()))
    expected = answer(database, {**command, name: f"{kind}_copy"})
    found = answer(database, {**command, name: f"{kind}_sharded"})
    assert found == expected
    return found


@pytest.mark.parametrize("kind", ["low", "even", "nested", "all"])
@pytest.mark.parametrize(
    "find",
    [
        {"sort": {"_id": 1}},
        {"filter": {"even": True}, "sort": {"key": -1}, "batchSize": 3},
        {"filter": {"$expr": {"$eq": ["$key", "$$x"]}}, "let": {"x": 300}},
        {"limit": 1, "singleBatch": True, "sort": {"_id": 1}},
        {"sort": {"_id": 1}, "skip": 2, "limit": 3, "projection": {"key": 1}},
        {"filter": {}, "projection": {}, "hint": {"_id": 1}, "sort": {"_id": 1}, "allowDiskUse": True},
    ],
)
def test_find(views: Database[Document], kind: str, find: dict[str, Any]) -> None:
    assert "documents" in assert_same(views, {"find": kind, **find})


@pytest.mark.parametrize(
    "option",
    [
        {"min": {"key": 1}},
        {"max": {"key": 1}},
        {"returnKey": True},
        {"showRecordId": True},
        {"tailable": True},
        {"noCursorTimeout": True},
        {"allowPartialResults": True},
        {"readOnce": True},
        {"singleBatch": True},
        {"limit": -1},
        {"filter": 3},
        {"sort": {"$natural": 1}, "hint": "_id_"},
        {"projection": {"list": {"$elemMatch": {"x": 1}}}},
        {"collation": {"locale": "fr"}},
    ],
)
def test_find_options_that_views_refuse(views: Database[Document], option: dict[str, Any]) -> None:
    found = answer(views, {"find": "low_sharded", **option})
    expected = answer(views, {"find": "low_copy", **option})
    assert found["code"] == expected["code"]
    if found["code"] == ErrorCode.InvalidPipelineOperator and "projection" not in option:
        assert found == expected


@pytest.mark.parametrize("kind", ["low", "even", "nested", "all", "joined"])
@pytest.mark.parametrize(
    "count", [{}, {"query": {"even": True}}, {"skip": 1, "limit": 2}, {"limit": -2}, {"query": {"key": -1}}]
)
def test_count(views: Database[Document], kind: str, count: dict[str, Any]) -> None:
    assert "n" in assert_same(views, {"count": kind, **count})


@pytest.mark.parametrize("kind", ["low", "even", "nested", "all", "joined"])
@pytest.mark.parametrize("count", [{"limit": 0}, {"limit": 0, "skip": 1}, {"limit": 0.0}])
def test_count_with_a_limit_of_zero(views: Database[Document], kind: str, count: dict[str, Any]) -> None:
    assert assert_same(views, {"count": kind, **count})["code"] == 15958


@pytest.mark.parametrize("kind", ["low", "joined"])
@pytest.mark.parametrize("key", ["key", "list", "list.x", "list.0", "missing", "$key", ""])
def test_distinct(views: Database[Document], kind: str, key: str) -> None:
    assert_same(views, {"distinct": kind, "key": key, "query": {"even": True}})


@pytest.mark.parametrize(
    ("kind", "pipeline"),
    [
        ("even", [{"$match": {"key": {"$gt": 200}}}, {"$sort": {"_id": -1}}, {"$limit": 2}]),
        ("low", [{"$group": {"_id": "$even", "n": {"$sum": 1}}}]),
        ("joined", [{"$sort": {"_id": 1}}]),
        ("nested", [{"$sort": {"_id": 1}}, {"$project": {"twice": 1}}]),
        ("all", [{"$count": "n"}]),
        ("all", [{"$collStats": {"count": {}}}]),
        ("even", [{"$indexStats": {}}]),
    ],
)
def test_aggregate(views: Database[Document], kind: str, pipeline: list[dict[str, Any]]) -> None:
    found = answer(views, {"aggregate": f"{kind}_sharded", "pipeline": pipeline, "cursor": {"batchSize": 1}})
    expected = answer(views, {"aggregate": f"{kind}_copy", "pipeline": pipeline, "cursor": {"batchSize": 1}})
    assert found.get("documents") == expected.get("documents")
    assert ("code" in found) is ("code" in expected)


@pytest.mark.parametrize(
    "command",
    [{"distinct": "failing_sharded", "key": "list"}, {"count": "failing_sharded", "query": {"list": 1}}],
    ids=str,
)
def test_a_shard_that_fails_to_read_a_view(views: Database[Document], command: dict[str, Any]) -> None:
    with pytest.raises(OperationFailure, match=r"\$divide only supports numeric types") as failed:
        views.command(command)
    assert failed.value.code == ErrorCode.TypeMismatch


@pytest.mark.parametrize("kind", ["all", "even", "collated", "nested"])
@pytest.mark.parametrize("query", [{"$text": {"$search": "a"}}, {"$or": [{"key": 1}, {"$text": {"$search": "a"}}]}])
def test_a_view_has_no_text_index(views: Database[Document], kind: str, query: dict[str, Any]) -> None:
    for command in ({"find": "", "filter": query}, {"distinct": "", "key": "key", "query": query}):
        answers = []
        for collection in ("sharded", "copy"):
            name, view = next(iter(command)), f"{kind}_{collection}"
            reply = answer(views, {**command, name: view})
            answers.append({**reply, "message": reply["message"].replace(view, "VIEW")})
        assert answers[0] == answers[1]
        assert answers[0]["code"] == ErrorCode.IndexNotFound


def test_groups_over_a_view_are_merged(views: Database[Document]) -> None:
    grouping: list[Document] = [{"$group": {"_id": "$even", "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}]
    command: Document = {"pipeline": grouping, "cursor": {"batchSize": 1}}
    found, expected = (answer(views, {"aggregate": f"all_{kind}", **command}) for kind in ("sharded", "copy"))
    assert found["documents"] == expected["documents"] != []


def test_other_collections_that_are_sharded_are_joined(views: Database[Document]) -> None:
    command: Document = {"pipeline": [{"$unionWith": "sharded"}, {"$sort": {"_id": 1}}], "cursor": {}}
    found, expected = (answer(views, {"aggregate": f"joined_{kind}", **command}) for kind in ("sharded", "copy"))
    assert found["documents"] == expected["documents"] != []


def test_the_collation_is_that_of_the_view(views: Database[Document]) -> None:
    names = {"find": "collated", "filter": {"name": "A"}, "sort": {"_id": 1}}
    upper = assert_same(views, names)["documents"]
    assert [each["_id"] for each in upper] == [0, 5, 10, 15]
    assert assert_same(views, {**names, "filter": {"name": "a"}})["documents"] == upper
    assert assert_same(views, {**names, "collation": {"locale": "en", "strength": 2}})["documents"] == upper
    assert assert_same(views, {**names, "collation": {"locale": "en"}})["code"] == ErrorCode.OptionNotSupportedOnView


def test_writing_the_contents_of_a_view(views: Database[Document]) -> None:
    views.low_sharded.aggregate([{"$out": "written"}])
    assert [each["_id"] for each in views.written.find()] == [6]


@pytest.mark.parametrize(
    "command",
    [
        {"insert": "all_sharded", "documents": [{}]},
        {"update": "all_sharded", "updates": [{"q": {}, "u": {"$set": {"a": 1}}}]},
        {"delete": "all_sharded", "deletes": [{"q": {}, "limit": 0}]},
        {"findAndModify": "all_sharded", "remove": True},
        {"explain": {"delete": "all_sharded", "deletes": [{"q": {}, "limit": 0}]}},
        {"aggregate": "copy", "pipeline": [{"$merge": "all_sharded"}], "cursor": {}},
    ],
)
def test_views_are_not_written(views: Database[Document], command: dict[str, Any]) -> None:
    reply = views.command(command, check=False)
    code = reply["writeErrors"][0]["code"] if "writeErrors" in reply else reply["code"]
    assert code == ErrorCode.CommandNotSupportedOnView


@pytest.mark.parametrize(
    ("explained", "shards"),
    [
        ({"find": "low_sharded"}, {LOWER}),
        ({"find": "all_sharded", "sort": {"_id": 1}}, {LOWER, UPPER}),
        ({"count": "all_sharded"}, {LOWER, UPPER}),
        ({"distinct": "low_sharded", "key": "key"}, {LOWER}),
        ({"aggregate": "low_sharded", "pipeline": [], "cursor": {}}, {LOWER}),
    ],
)
def test_explain(views: Database[Document], explained: dict[str, Any], shards: set[str]) -> None:
    reply = views.command("explain", explained, verbosity="queryPlanner")
    assert set(reply["shards"]) == shards
    assert reply["command"]["aggregate"] == "sharded"


def test_a_view_whose_collection_is_sharded_later(database: Database[Document], other_client: Client) -> None:
    database.c.insert_many([{"_id": n, "key": n * 100} for n in range(10)])
    database.create_collection("v", viewOn="c", pipeline=[{"$match": {"key": {"$gte": 300}}}])
    seen = other_client[database.name]
    assert seen.v.count_documents({}) == 7
    database.c.create_index("key")
    shard_collection(database, "c", {"key": 1})
    assert seen.v.count_documents({}) == 7
    database.client.admin.command("split", f"{database.name}.c", middle={"key": SPLIT_AT})
    database.client.admin.command("moveChunk", f"{database.name}.c", find={"key": SPLIT_AT}, to=UPPER)
    assert sorted(each["_id"] for each in seen.v.find()) == list(range(3, 10))
    assert seen.v.count_documents({"key": {"$lt": SPLIT_AT}}) == 2
