"""``$lookup``, ``$graphLookup`` and ``$unionWith`` of collections elsewhere, compared with one mongod's own joins.

The same documents are in a database of sharded collections and in one whose collections are all on one shard, where a
mongod runs the whole pipeline.
"""

import random
from collections.abc import Iterator
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pymongo.database import Database
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from tests.integration.routers import extra_router
from tests.integration.sharded import LOWER, UPPER, Document, shard_by_hash, shard_by_range
from tests.local_cluster import Client, RunningCluster, client_of
from tests.sampling import many

Both = tuple[Database[Document], Database[Document]]
"""The sharded collections, and the copies on one shard."""

Pipeline = list[dict[str, Any]]

VALUES: Final[list[Any]] = [1, 1.0, 2, 3, None, "a", "A", "b", [1, 2], [], [[1]], [None], {"x": 1}, [{"x": 1}], True]
COLLECTIONS: Final = ("ranged", "hashed", "whole")
VIEWS: Final[dict[str, tuple[str, Pipeline]]] = {
    "few": ("ranged", [{"$match": {"number": {"$lt": 20}}}]),
    "joined": (
        "whole",
        [
            {"$lookup": {"from": "ranged", "localField": "a", "foreignField": "b", "as": "r"}},
            {"$set": {"n": {"$size": "$r"}}},
        ],
    ),
}


def made_up(count: int, seed: int) -> list[Document]:
    """Documents with many types of values, also in arrays, and without values."""
    choices = random.Random(seed)
    documents = []
    for number in range(count):
        document: Document = {"_id": number, "number": number, "key": number * 20, "up": choices.randrange(-1, count)}
        document |= {name: choices.choice(VALUES) for name in ("a", "b") if choices.random() < 0.9}
        if choices.random() < 0.6:
            document["o"] = [{"c": choices.choice(VALUES)} for _ in range(choices.randrange(3))]
        documents.append(document)
    return documents


@pytest.fixture(scope="module")
def both(routers: tuple[Client, Client]) -> Iterator[Both]:
    """The same documents, sharded and not; the lower shard has orphans of moved documents."""
    client, _ = routers
    sharded, plain = client["joins"], client["joins_plain"]
    for database in (sharded, plain):
        client.drop_database(database.name)
        client.admin.command("enableSharding", database.name, primaryShard=LOWER)
    shard_by_range(sharded, "ranged")
    shard_by_hash(sharded, "hashed")
    for seed, name in enumerate(COLLECTIONS):
        documents = made_up(50, seed)
        sharded[name].insert_many(documents)
        plain[name].insert_many(documents)
    client.admin.command("split", "joins.ranged", middle={"key": 200})
    client.admin.command("moveChunk", "joins.ranged", find={"key": 200}, to=UPPER)
    for database in (sharded, plain):
        for view, (collection, pipeline) in VIEWS.items():
            database.create_collection(view, viewOn=collection, pipeline=pipeline)
    yield sharded, plain
    for database in (sharded, plain):
        client.drop_database(database.name)


def in_any_order(value: Any) -> Any:  # noqa: ANN401 - any BSON value
    """The same with arrays of documents sorted: without a ``$sort``, a join returns its matches in any order."""
    if isinstance(value, dict):
        return {name: in_any_order(each) for name, each in value.items()}
    if isinstance(value, list):
        found = [in_any_order(each) for each in value]
        return sorted(found, key=str) if any(isinstance(each, dict) for each in found) else found
    # Which of two equal numbers names a group depends on the order too.
    return int(value) if isinstance(value, float) else value


def answer(database: Database[Document], name: str, pipeline: Pipeline, **options: Any) -> list[Any]:  # noqa: ANN401
    """The documents that an aggregation returns, in no particular order, or its error code."""
    try:
        return sorted(map(str, map(in_any_order, database[name].aggregate(pipeline, **options))))
    except OperationFailure as failure:
        return ["error", failure.code]


def assert_same(both: Both, name: str, pipeline: Pipeline, **options: Any) -> None:  # noqa: ANN401
    """Check that an aggregation answers the same in both databases."""
    sharded, plain = (answer(database, name, pipeline, **options) for database in both)
    assert sharded == plain


def lookup(source: str, local: str = "a", foreign: str = "b", **more: Any) -> dict[str, Any]:  # noqa: ANN401
    """A ``$lookup`` that compares fields."""
    return {"$lookup": {"from": source, "localField": local, "foreignField": foreign, "as": "r", **more}}


OF_EQUAL_NUMBER: Final[Pipeline] = [{"$match": {"$expr": {"$eq": ["$number", "$$n"]}}}]
WITH_VARIABLES: Final[dict[str, Any]] = {
    "$lookup": {
        "from": "ranged",
        "let": {"n": "$number", "none": "$missing"},
        "pipeline": [*OF_EQUAL_NUMBER, {"$set": {"type": {"$type": "$$none"}}}],
        "as": "r",
    }
}
UPWARDS: Final[dict[str, Any]] = {"startWith": "$up", "connectFromField": "up", "connectToField": "_id", "as": "r"}

JOINS: Final[list[Pipeline]] = [
    [lookup("ranged")],
    [lookup("hashed", "number", "_id")],
    [lookup("ranged", "o.c", "o.c")],
    [lookup("ranged", "a", "o.c", **{"as": "x.y"})],
    [lookup("few", "o.c", "b")],
    [lookup("joined", "up", "_id")],
    [lookup("ranged"), {"$unwind": "$r"}, {"$match": {"r.number": {"$gt": 20}}}],
    [lookup("ranged"), {"$unwind": "$r"}, {"$group": {"_id": "$r.b", "n": {"$sum": 1}}}],
    [lookup("ranged"), lookup("hashed", "r.number", "number", **{"as": "s"})],
    [lookup("ranged", pipeline=[{"$match": {"number": {"$lt": 40}}}, {"$sort": {"_id": 1}}, {"$limit": 1}])],
    [
        lookup(
            "ranged",
            let={"n": "$number"},
            pipeline=[{"$match": {"$expr": {"$gt": ["$number", "$$n"]}}}, {"$count": "n"}],
        )
    ],
    [WITH_VARIABLES],
    [{"$lookup": {"from": "hashed", "pipeline": [{"$match": {"b": 1}}, {"$project": {"a": 1}}], "as": "r"}}],
    [
        {
            "$lookup": {
                "from": "ranged",
                "let": {"n": "$number"},
                "pipeline": [*OF_EQUAL_NUMBER, lookup("hashed")],
                "as": "r",
            }
        }
    ],
    [lookup("ranged", pipeline=[lookup("hashed", "number", "number", **{"as": "s"}), {"$set": {"s": "$s.a"}}])],
    [
        lookup(
            "whole",
            let={"n": "$number"},
            pipeline=[
                {"$match": {"$expr": {"$gt": ["$number", "$$n"]}}},
                {"$unionWith": {"coll": "hashed", "pipeline": [{"$match": {"number": {"$lt": 2}}}]}},
                lookup("few", "b", "a", **{"as": "s"}, let={"o": "$number"}, pipeline=[{"$set": {"o": "$$o"}}]),
                {"$set": {"n": "$$n"}},
            ],
        )
    ],
    [
        {
            "$lookup": {
                "localField": "o.c",
                "foreignField": "n",
                "let": {"number": "$number"},
                "pipeline": [
                    {"$documents": [{"n": 1}, {"n": [2, 3]}, {"n": None}]},
                    lookup("hashed", "n", "a", **{"as": "s"}),
                    {"$set": {"m": "$$number"}},
                ],
                "as": "r",
            }
        }
    ],
    [lookup("joined", "up", "_id", pipeline=[lookup("ranged", "n", "_id", **{"as": "s"})])],
    [{"$graphLookup": {"from": "ranged", **UPWARDS}}],
    [{"$graphLookup": {"from": "few", **UPWARDS, "maxDepth": 2, "depthField": "steps.taken"}}],
    [
        {
            "$graphLookup": {
                "from": "hashed",
                "startWith": "$a",
                "connectFromField": "o.c",
                "connectToField": "b",
                "restrictSearchWithMatch": {"number": {"$lt": 30}},
                "as": "r",
            }
        }
    ],
    [{"$unionWith": "ranged"}],
    [{"$unionWith": {"coll": "hashed", "pipeline": [{"$match": {"b": 1}}]}}, {"$group": {"_id": "$b"}}],
    [{"$unionWith": {"coll": "ranged", "pipeline": [lookup("hashed")]}}, {"$match": {"number": {"$lt": 10}}}],
    [{"$facet": {"first": [lookup("ranged"), {"$match": {"number": 3}}], "second": [{"$count": "n"}]}}],
]


@pytest.mark.parametrize("name", [*COLLECTIONS, *VIEWS])
@pytest.mark.parametrize("pipeline", JOINS, ids=lambda pipeline: str(pipeline)[:60])
@pytest.mark.matrix(share=0.6)
def test_the_answer_is_that_of_one_mongod(both: Both, name: str, pipeline: Pipeline) -> None:
    assert_same(both, name, pipeline)


@pytest.mark.parametrize(
    ("pipeline", "options"),
    [
        ([lookup("ranged")], {"collation": {"locale": "en", "strength": 2}}),
        ([lookup("hashed", pipeline=[{"$match": {"$expr": {"$lt": ["$number", "$$n"]}}}])], {"let": {"n": 10}}),
        ([WITH_VARIABLES, {"$match": {"$expr": {"$lt": ["$number", "$$most"]}}}], {"let": {"most": 10}}),
        ([{"$unionWith": "hashed"}], {"batchSize": 7, "comment": "a comment", "allowDiskUse": True}),
        ([lookup("ranged")], {"batchSize": 0, "readConcern": {"level": "majority"}}),
    ],
)
def test_options_apply_to_all_collections(both: Both, pipeline: Pipeline, options: dict[str, Any]) -> None:
    assert_same(both, "whole", pipeline, **{key: value for key, value in options.items() if key != "readConcern"})


@pytest.mark.parametrize(
    "stage",
    [
        {"$lookup": {"from": "ranged", "as": "r"}},
        {"$lookup": {"from": "ranged", "localField": "a", "as": "r"}},
        {"$lookup": {"from": "ranged", "localField": "a", "foreignField": "b"}},
        {"$lookup": {"from": "ranged", "localField": "a", "foreignField": "$b", "as": "r"}},
        {"$lookup": {"from": "ranged", "pipeline": [{"$out": "written"}], "as": "r"}},
        {"$lookup": {"from": "ranged", "localField": "a", "foreignField": "b", "let": {"x": 1}, "as": "r"}},
        {"$lookup": {"from": "ranged", "let": {"x": "$$none"}, "pipeline": [{"$match": {"a": "$$x"}}], "as": "r"}},
        {"$graphLookup": {"from": "ranged"}},
        {"$graphLookup": {"from": "ranged", **UPWARDS, "maxDepth": -1}},
        {"$unionWith": {"coll": "ranged", "pipeline": [{"$out": "written"}]}},
    ],
)
def test_errors_are_those_of_one_mongod(both: Both, stage: dict[str, Any]) -> None:
    sharded, plain = (answer(database, "whole", [stage]) for database in both)
    assert sharded == plain
    assert plain[0] == "error"


def test_a_join_from_one_shard_with_a_collection_on_the_other(both: Both) -> None:
    """The documents are all on the upper shard, and the other collection is unsharded on the lower one."""
    assert_same(both, "ranged", [{"$match": {"key": 600}}, lookup("whole")])
    assert_same(both, "ranged", [{"$match": {"key": 600}}, lookup("few", "number", "number")])


def test_documents_without_a_collection(both: Both) -> None:
    """A mongos, and so a router, joins only sharded collections with them; nested in a pipeline, any collections."""
    pipeline: Pipeline = [{"$documents": [{"a": 1}, {"a": [2, 3]}]}, lookup("ranged")]
    nested: Pipeline = [{"$lookup": {"pipeline": pipeline, "as": "r"}}]
    assert_same(both, "whole", nested)
    sharded, plain = both
    first = next(plain.whole.aggregate([{"$limit": 1}, *nested]))
    assert [in_any_order(each) for each in sharded.aggregate(pipeline)] == [in_any_order(each) for each in first["r"]]
    with pytest.raises(OperationFailure, match=r"\$documents must run on mongoS, but cannot") as failure:
        plain.aggregate(pipeline)
    assert failure.value.code == ErrorCode.IllegalOperation


def test_reads_of_a_view_that_joins(both: Both) -> None:
    for database in both:
        assert database["joined"].count_documents({"n": 0}) == both[1]["joined"].count_documents({"n": 0})
        assert sorted(database["joined"].distinct("n")) == sorted(both[1]["joined"].distinct("n"))
    found = [each["_id"] for each in both[0]["joined"].find({"n": {"$gt": 3}}, sort=[("_id", 1)])]
    assert found == [each["_id"] for each in both[1]["joined"].find({"n": {"$gt": 3}}, sort=[("_id", 1)])]


def test_the_order_before_a_join_is_kept(both: Both) -> None:
    pipeline: Pipeline = [{"$sort": {"number": -1}}, lookup("hashed"), {"$limit": 12}]
    found = [each["_id"] for each in both[0].ranged.aggregate(pipeline, batchSize=5)]
    assert found == list(range(49, 37, -1))


def test_a_join_is_merged_into_a_sharded_collection(both: Both) -> None:
    sharded, plain = both
    written = shard_by_hash(sharded, "written")
    sharded.whole.aggregate([lookup("ranged", "number", "number"), {"$merge": {"into": "written"}}])
    expected = plain.whole.aggregate([lookup("ranged", "number", "number"), {"$sort": {"_id": 1}}])
    assert list(written.find(sort=[("_id", 1)])) == list(expected)
    written.drop()


def test_a_collection_that_moves_while_it_is_joined(client: Client, database: Database[Document]) -> None:
    ranged = shard_by_range(database)
    ranged.insert_many({"_id": number, "key": number} for number in range(300))
    database.whole.insert_many({"_id": number, "pad": "x" * 2000} for number in range(300))
    client.admin.command("split", ranged.full_name, middle={"key": 100})
    cursor = database.whole.aggregate([{"$sort": {"_id": 1}}, lookup(ranged.name, "_id", "key")], batchSize=10)
    found = [next(cursor) for _ in range(15)]
    client.admin.command("moveChunk", ranged.full_name, find={"key": 100}, to=UPPER)
    found += cursor
    assert [each["_id"] for each in found] == list(range(300))
    assert all([match["_id"] for match in each["r"]] == [each["_id"]] for each in found)


def test_a_union_is_read_once_while_it_moves(client: Client, database: Database[Document]) -> None:
    ranged = shard_by_range(database)
    ranged.insert_many({"_id": number, "key": number} for number in range(300))
    database.whole.insert_many({"_id": number} for number in range(1000, 1300))
    client.admin.command("split", ranged.full_name, middle={"key": 100})
    for at in (5, 310, 450):
        cursor = database.whole.aggregate([{"$unionWith": ranged.name}], batchSize=10)
        found = [next(cursor) for _ in range(at)]
        to = LOWER if at == 310 else UPPER
        client.admin.command("moveChunk", ranged.full_name, find={"key": 100}, to=to)
        found += cursor
        assert sorted(each["_id"] for each in found) == [*range(300), *range(1000, 1300)]


def test_a_mongod_reads_many_documents_from_the_router(both: Both, database: Database[Document]) -> None:
    """More than are handed over in one command."""
    hashed = shard_by_hash(database)
    hashed.insert_many({"_id": number, "pad": "x" * 1000} for number in range(1400))
    database.whole.insert_many({"_id": number, "half": number // 2, "pad": "x" * 1000} for number in range(1400))
    grouping: Pipeline = [lookup("hashed", "_id", "_id"), {"$group": {"_id": "$half", "r": {"$push": "$r.pad"}}}]
    found = list(database.whole.aggregate([*grouping, {"$sort": {"_id": 1}}], allowDiskUse=True))
    assert [each["_id"] for each in found] == list(range(700))
    assert all(each["r"] == [["x" * 1000]] * 2 for each in found)
    first = next(database.whole.aggregate([*grouping, lookup("hashed", "_id", "_id")], batchSize=1))
    assert first["r"] == [{"_id": first["_id"], "pad": "x" * 1000}]


def test_the_cursors_of_a_killed_join_are_killed(client: Client, database: Database[Document]) -> None:
    hashed = shard_by_hash(database)
    hashed.insert_many({"_id": number, "pad": "x" * 1000} for number in range(1400))
    before = client.admin.command("serverStatus")["metrics"]["cursor"]["open"]["total"]
    cursor = hashed.aggregate([{"$unionWith": "hashed"}, {"$sort": {"pad": 1}}, {"$unionWith": "hashed"}], batchSize=2)
    next(cursor)
    cursor.close()
    assert client.admin.command("serverStatus")["metrics"]["cursor"]["open"]["total"] == before


def test_a_mongod_reads_from_the_worker_that_has_the_cursor(
    cluster: RunningCluster, database: Database[Document]
) -> None:
    hashed = shard_by_hash(database)
    hashed.insert_many({"_id": number, "pad": "x" * 1000} for number in range(1100))
    with extra_router(cluster, "--workers", "3") as (address, _), client_of(address) as workers:
        grouping: Pipeline = [{"$unionWith": "hashed"}, {"$group": {"_id": "$_id", "n": {"$sum": 1}}}]
        for _ in range(3):
            found = list(workers[database.name].hashed.aggregate(grouping))
            assert sorted((each["_id"], each["n"]) for each in found) == [(number, 2) for number in range(1100)]


VALUE = st.sampled_from(VALUES)
DOCUMENT = st.fixed_dictionaries(
    {}, optional={"a": VALUE, "b": VALUE, "o": st.lists(st.fixed_dictionaries({"c": VALUE}))}
)
FIELD = st.sampled_from(["a", "b", "o.c", "o", "o.0.c", "a.x"])
LOCAL = st.sampled_from(["a", "b", "o.c", "o", "a.x"])
"""Without an index into an array: mongod's two engines disagree about it in a ``localField``."""
NESTED: Final[list[Pipeline]] = [
    [],
    [{"$match": {"b": {"$ne": None}}}],
    [{"$project": {"_id": 0, "b": 1}}],
    [{"$match": {"$expr": {"$eq": ["$b", "$$v"]}}}],
    [{"$sort": {"_id": 1}}, {"$limit": 2}],
    [{"$count": "n"}],
]


@st.composite
def joins(draw: st.DrawFn) -> Pipeline:
    """A pipeline with a join."""
    source = draw(st.sampled_from(["left", "right"]))
    nested = draw(st.sampled_from(NESTED))
    fields = {"localField": draw(LOCAL), "foreignField": draw(FIELD)}
    variables: dict[str, Any] = {"let": {"v": f"${draw(st.sampled_from(['a', 'b', 'o']))}"}, "pipeline": nested}
    graph = {"startWith": "$a", "connectFromField": draw(FIELD), "connectToField": draw(FIELD), "as": "r"}
    stage = draw(
        st.sampled_from(
            [
                {"$lookup": {"from": source, **fields, "as": "r"}},
                {"$lookup": {"from": source, **fields, **variables, "as": "r"}},
                {"$lookup": {"from": source, **variables, "as": "r"}},
                {"$graphLookup": {"from": source, **graph, "maxDepth": draw(st.integers(0, 3))}},
                {"$unionWith": {"coll": source, "pipeline": nested[:1] if "$expr" not in str(nested) else []}},
            ]
        )
    )
    rest: list[Pipeline] = [[], [{"$unwind": "$r"}], [{"$group": {"_id": "$r", "n": {"$sum": 1}}}]]
    return [stage, *draw(st.sampled_from(rest))]


@settings(
    max_examples=many(300, 12),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    left=st.lists(DOCUMENT, max_size=6), right=st.lists(DOCUMENT, max_size=6), pipelines=st.lists(joins(), max_size=5)
)
def test_any_join(both: Both, left: list[Document], right: list[Document], pipelines: list[Pipeline]) -> None:
    sharded, _ = both
    if "left" not in sharded.list_collection_names():
        shard_by_hash(sharded, "left")
        shard_by_hash(sharded, "right")
    for database in both:
        for name, documents in (("left", left), ("right", right)):
            database[name].delete_many({})
            if documents:
                database[name].insert_many([{"_id": number, **each} for number, each in enumerate(documents)])
    for pipeline in pipelines:
        assert_same(both, "left", pipeline)


@pytest.mark.parametrize("verbosity", ["queryPlanner", "executionStats"])
@pytest.mark.parametrize("name", [*COLLECTIONS, *VIEWS])
@pytest.mark.parametrize("pipeline", JOINS, ids=lambda pipeline: str(pipeline)[:60])
@pytest.mark.matrix(share=0.3)
def test_joins_are_explained(both: Both, name: str, pipeline: Pipeline, verbosity: str) -> None:
    """The join is in the merger's part, and the shards explain the stages before it."""
    command = {"aggregate": name, "pipeline": pipeline, "cursor": {}}
    explained = both[0].command("explain", command, verbosity=verbosity)
    behind = [next(iter(stage)) for stage in explained["splitPipeline"]["mergerPart"]]
    assert behind[0] == "$mergeCursors"
    assert set(behind).intersection({"$lookup", "$graphLookup", "$unionWith", "$facet"})
    assert not any("$lookup" in stage for stage in explained["splitPipeline"]["shardsPart"])
    assert set(explained["shards"]) == ({LOWER, UPPER} if name in ("ranged", "hashed", "few") else {LOWER})
    for shard in explained["shards"].values():
        assert "queryPlanner" in shard or "stages" in shard


def test_the_parts_of_an_explained_join(both: Both) -> None:
    pipeline: Pipeline = [{"$match": {"key": 600}}, lookup("hashed"), {"$unwind": "$r"}, {"$out": "written"}]
    explained = both[0].command({"aggregate": "ranged", "pipeline": pipeline, "explain": True})
    assert explained["mergeType"] == "mongos"
    assert explained["splitPipeline"]["shardsPart"] == pipeline[:1]
    assert explained["splitPipeline"]["mergerPart"][1:] == pipeline[1:]
    assert list(explained["shards"]) == [UPPER]
    assert "written" not in both[0].list_collection_names()


def test_a_filter_of_a_view_that_joins_is_applied_before_the_join(both: Both) -> None:
    explained = both[0].command("explain", {"find": "joined", "filter": {"_id": 3}})
    assert [list(stage) for stage in explained["splitPipeline"]["shardsPart"]] == [["$match"]]
    for query in ({"_id": 3}, {"number": {"$lt": 7}}, {"$or": [{"_id": 4}, {"number": 30}]}, {"r.a": 1, "_id": 5}):
        found = [in_any_order(each) for each in both[0]["joined"].find(query, sort=[("_id", 1)])]
        assert found == [in_any_order(each) for each in both[1]["joined"].find(query, sort=[("_id", 1)])]
