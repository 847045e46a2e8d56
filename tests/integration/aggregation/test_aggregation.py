"""Aggregations over several shards, compared with the same data in one unsharded collection; and their writes."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import bson
import pytest
from pymongo.collation import Collation
from pymongo.database import Database
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from tests.fail_points import fail_point
from tests.integration.sharded import LOWER, UPPER, Document, Documents, shard_by_range, shard_collection
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster

Stages = list[Document]

BY_KEY: Document = {"$sort": {"key": 1}}
JOIN: Document = {"$lookup": {"from": "other", "localField": "g", "foreignField": "_id", "as": "joined"}}
COUNT = 40


@pytest.fixture(scope="module")
def data(client: Client) -> Iterator[Database[Document]]:
    """The same documents in ``ranged``, on both shards, and ``plain``; ``other`` is unsharded."""
    database = client["aggregation"]
    shard_by_range(database)
    rows = [
        {
            "_id": n,
            "key": n * 25,
            "g": n % 3,
            "x": n * 7 % 11,
            "tags": [n % 2, "t"],
            "at": [n, n % 5],
            "text": "one two"[: 3 + n],
        }
        for n in range(COUNT)
    ]
    for name in ("ranged", "plain"):
        database[name].insert_many(rows)
        database[name].create_index([("at", "2d")])
        database[name].create_index([("text", "text")])
    database.other.insert_many([{"_id": n, "next": n + 1} for n in range(5)])
    for name, source in (("grouped_ranged", "ranged"), ("grouped_plain", "plain")):
        database.create_collection(name, viewOn=source, pipeline=[{"$group": {"_id": "$g", "n": {"$sum": 1}}}])
        database.create_collection(f"over_{name}", viewOn=name, pipeline=[{"$sort": {"n": -1, "_id": 1}}])
    yield database
    client.drop_database(database.name)


def both(data: Database[Document], stages: Stages, **options: Any) -> tuple[Stages, Stages]:  # noqa: ANN401
    """The results on the sharded and on the plain collection."""
    sharded, plain = (list(data[name].aggregate(stages, **options)) for name in ("ranged", "plain"))
    return sharded, plain


ORDERED: list[Stages] = [
    [BY_KEY],
    [{"$sort": {"g": -1, "key": 1}}, {"$skip": 3}, {"$limit": 7}, {"$project": {"x": 1}}],
    [BY_KEY, {"$unwind": "$tags"}, {"$limit": 9}],
    [BY_KEY, {"$group": {"_id": None, "all": {"$push": "$x"}, "first": {"$first": "$key"}, "last": {"$last": "$key"}}}],
    [BY_KEY, {"$limit": 30}, {"$group": {"_id": "$g", "n": {"$sum": "$x"}}}, {"$sort": {"_id": 1}}],
    [{"$group": {"_id": "$g", "n": {"$avg": "$x"}}}, {"$sort": {"_id": -1}}, {"$limit": 2}],
    [BY_KEY, JOIN],
    [BY_KEY, JOIN, {"$unwind": "$joined"}, {"$replaceWith": "$joined"}],
    [
        BY_KEY,
        {
            "$graphLookup": {
                "from": "other",
                "startWith": "$g",
                "connectFromField": "next",
                "connectToField": "_id",
                "as": "r",
                "maxDepth": 0,
            }
        },
    ],
    [{"$setWindowFields": {"partitionBy": "$g", "sortBy": {"key": 1}, "output": {"r": {"$rank": {}}}}}, BY_KEY],
    [
        {"$densify": {"field": "key", "range": {"step": 5, "bounds": "full"}}},
        BY_KEY,
        {"$project": {"_id": 0, "key": 1}},
    ],
    [{"$fill": {"sortBy": {"key": 1}, "output": {"missing": {"method": "locf"}}}}, BY_KEY],
    [{"$bucket": {"groupBy": "$x", "boundaries": [0, 3, 9], "default": "rest", "output": {"n": {"$sum": 1}}}}],
    [{"$bucketAuto": {"groupBy": "$key", "buckets": 4}}],
    [{"$facet": {"few": [BY_KEY, {"$limit": 2}], "n": [{"$count": "n"}]}}],
    [{"$geoNear": {"near": [0, 0], "distanceField": "far", "key": "at"}}, {"$limit": 5}],
    [{"$match": {"$text": {"$search": "one"}}}, {"$sort": {"score": {"$meta": "textScore"}, "key": 1}}],
    *(
        [{"$match": {"$text": {"$search": "one"}}}, {"$sort": {"score": {"$meta": "textScore"}, "key": 1}}, *after]
        for after in (
            [{"$project": {"key": 1}}, {"$skip": 3}, {"$limit": 4}],
            [{"$set": {"score": {"$meta": "textScore"}}}, {"$unset": "at"}],
            [{"$count": "n"}],
        )
    ),
    [{"$count": "n"}],
    [{"$match": {"x": {"$gt": 3}}}, {"$skip": 3}, {"$count": "n"}],
    [{"$sortByCount": "$g"}, {"$sort": {"count": -1, "_id": 1}}],
    [{"$unionWith": "other"}, {"$sort": {"key": 1, "_id": 1}}],
    [{"$sample": {"size": 6}}, {"$count": "n"}],
    [{"$sample": {"size": 6}}, {"$group": {"_id": None, "n": {"$sum": 1}}}],
    [{"$match": {"key": {"$lt": 100}}}, {"$group": {"_id": "$g", "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}],
]


@pytest.mark.parametrize("stages", ORDERED, ids=str)
def test_stages_over_several_shards(data: Database[Document], stages: Stages) -> None:
    sharded, plain = both(data, stages, batchSize=4)
    assert sharded == plain


REFUSED: list[Stages] = [
    [{"$unknown": 1}],
    [{"$group": {"n": {"$sum": 1}}}],
    [{"$sort": {}}],
    [{"$limit": 0}],
    [{"$count": ""}],
    [{"$bucket": {"groupBy": "$x", "boundaries": [5, 0]}}],
    [{"$bucket": {"groupBy": "$x", "boundaries": [0, 1]}}],
    [{"$match": {}}, {"$geoNear": {}}],
    [{"$match": {}}, {"$collStats": {}}],
    [{"$out": "written"}, {"$match": {}}],
    [{"$group": {"_id": {"$divide": ["$x", 0]}}}],
    [{"$facet": {"a": [{"$out": "written"}]}}],
    [{"$mergeCursors": {"remotes": []}}],
]


@pytest.mark.parametrize("stages", REFUSED, ids=str)
def test_errors_over_several_shards(data: Database[Document], stages: Stages) -> None:
    codes = []
    for name in ("ranged", "plain"):
        with pytest.raises(OperationFailure) as failure:
            list(data[name].aggregate(stages))
        codes.append(failure.value.code)
    assert codes[0] == codes[1]


def test_options_reach_every_leg(data: Database[Document]) -> None:
    stages: Stages = [
        {"$match": {"$expr": {"$gt": ["$x", "$$low"]}}},
        {"$unionWith": "other"},
        {"$group": {"_id": {"$toUpper": {"$toString": "$g"}}, "n": {"$sum": 1}}},
        {"$sort": {"_id": 1}},
    ]
    options = {"let": {"low": 3}, "allowDiskUse": True, "hint": {"_id": 1}, "comment": "legs", "maxTimeMS": 60_000}
    sharded, plain = both(data, stages, **options, collation={"locale": "en", "strength": 2})
    assert sharded == plain


def test_a_collation_applies_on_the_merger(data: Database[Document]) -> None:
    stages: Stages = [
        {"$project": {"name": {"$cond": [{"$eq": [{"$mod": ["$g", 2]}, 0]}, "A", "a"]}}},
        {"$group": {"_id": "$name", "n": {"$sum": 1}}},
    ]
    insensitive = list(data.ranged.aggregate(stages, collation={"locale": "en", "strength": 2}))
    assert [each["n"] for each in insensitive] == [COUNT]
    assert len(list(data.ranged.aggregate(stages))) == 2


def test_now_is_the_same_on_all_shards(data: Database[Document]) -> None:
    stages: Stages = [{"$group": {"_id": {"now": "$$NOW", "time": "$$CLUSTER_TIME"}, "n": {"$sum": 1}}}]
    assert [each["n"] for each in data.ranged.aggregate(stages)] == [COUNT]


def test_a_snapshot_is_merged(data: Database[Document]) -> None:
    with data.client.start_session(snapshot=True) as session:
        for _ in range(2):
            [found] = data.ranged.aggregate([{"$group": {"_id": None, "n": {"$sum": "$g"}}}], session=session)
            assert found["n"] == sum(n % 3 for n in range(COUNT))
            data.other.insert_one({})
    data.other.delete_many({"next": {"$exists": False}})


@pytest.mark.parametrize("prefix", ["", "over_"])
def test_views_with_groups(data: Database[Document], prefix: str) -> None:
    of_sharded, of_plain = data[f"{prefix}grouped_ranged"], data[f"{prefix}grouped_plain"]
    by_id = {"_id": 1}
    assert list(of_sharded.find().sort(by_id).batch_size(2)) == list(of_plain.find().sort(by_id))
    assert of_sharded.count_documents({"n": {"$gt": 0}}) == 3
    assert sorted(of_sharded.distinct("n")) == sorted(of_plain.distinct("n"))
    total: Stages = [{"$group": {"_id": None, "n": {"$sum": "$n"}}}]
    assert list(of_sharded.aggregate(total)) == [{"_id": None, "n": COUNT}]


def test_joining_on_one_shard_and_writing_on_another(data: Database[Document], client: Client) -> None:
    elsewhere = client["aggregation_elsewhere"]
    client.admin.command("enableSharding", elsewhere.name, primaryShard=UPPER)
    try:
        for name in ("ranged", "plain"):
            writing = {"$merge": {"into": {"db": elsewhere.name, "coll": name}}}
            data[name].aggregate([JOIN, {"$match": {"joined._id": 2}}, writing])
            written = list(elsewhere[name].find().sort("_id"))
            assert [each["_id"] for each in written] == [n for n in range(COUNT) if n % 3 == 2]
            assert all(len(each["joined"]) == 1 for each in written)
    finally:
        client.drop_database(elsewhere.name)


@pytest.mark.parametrize("primary", [LOWER, UPPER])
@pytest.mark.parametrize("source", ["ranged", "plain"])
def test_writing_to_unsharded_collections_of_any_shard(
    data: Database[Document], client: Client, source: str, primary: str
) -> None:
    target = client[f"aggregation_{primary}"]
    client.admin.command("enableSharding", target.name, primaryShard=primary)
    try:
        into = {"db": target.name, "coll": "written"}
        grouping: Document = {"$group": {"_id": "$g", "n": {"$sum": 1}}}
        data[source].aggregate([grouping, {"$out": into}])
        assert sorted(each["n"] for each in target.written.find()) == [13, 13, 14]
        data[source].aggregate([grouping, {"$set": {"m": 1}}, {"$merge": {"into": into}}])
        assert [each["m"] for each in target.written.find({"n": {"$gt": 0}})] == [1, 1, 1]
        data[source].aggregate([BY_KEY, {"$out": into}])
        assert target.written.count_documents({}) == COUNT
    finally:
        client.drop_database(target.name)


def test_a_merge_tells_why_a_document_is_invalid(data: Database[Document], database: Database[Document]) -> None:
    target = shard_by_range(database, "target")
    database.command("collMod", "target", validator={"$jsonSchema": {"required": ["missing"]}})
    with pytest.raises(OperationFailure) as failure:
        data.ranged.aggregate([{"$merge": {"into": {"db": database.name, "coll": target.name}}}])
    assert failure.value.code == ErrorCode.DocumentValidationFailure
    assert failure.value.details is not None
    assert failure.value.details["errInfo"]["details"]["operatorName"] == "$jsonSchema"


MERGES: list[tuple[Document, Document | int]] = [
    ({}, {"old": 1, "new": 1}),
    ({"whenMatched": "replace"}, {"new": 1}),
    ({"whenMatched": "keepExisting"}, {"old": 1}),
    ({"whenMatched": [{"$set": {"kept": "$$new.new"}}]}, {"old": 1, "kept": 1}),
    ({"whenMatched": [{"$set": {"kept": "$$y"}}], "let": {"y": {"$add": ["$new", 4]}}}, {"old": 1, "kept": 5}),
    ({"whenMatched": "fail"}, ErrorCode.DuplicateKey),
]


@pytest.mark.parametrize(("modes", "expected"), MERGES, ids=str)
@pytest.mark.parametrize("not_matched", ["insert", "discard", "fail"])
@pytest.mark.parametrize("source", ["ranged", "plain"])
@pytest.mark.matrix
def test_merging_into_a_sharded_collection(
    data: Database[Document],
    database: Database[Document],
    modes: Document,
    expected: Document | int,
    not_matched: str,
    source: str,
) -> None:
    target = shard_by_range(database, "target")
    target.insert_many([{"_id": n, "key": n * 25, "old": 1} for n in range(0, COUNT, 2)])
    into = {"into": {"db": database.name, "coll": "target"}, **modes, "whenNotMatched": not_matched}
    stages: Stages = [{"$project": {"key": 1, "new": {"$literal": 1}}}, {"$merge": into}]
    is_unsupported = not_matched != "insert" and modes.get("whenMatched") in ("fail", "keepExisting")
    code = 51181 if is_unsupported else expected if isinstance(expected, int) else None
    if code is None and not_matched == "fail":
        code = 13113
    if code is not None:
        with pytest.raises(OperationFailure) as failure:
            data[source].aggregate(stages, batchSize=0)
        assert failure.value.code == code
        return
    assert list(data[source].aggregate(stages)) == []
    assert isinstance(expected, dict)
    stored = {each.pop("_id"): each for each in target.find({}, {"key": 0})}
    assert {number: stored[number] for number in range(0, COUNT, 2)} == dict.fromkeys(range(0, COUNT, 2), expected)
    assert len(stored) == (COUNT if not_matched == "insert" else COUNT // 2)


def test_a_merge_that_reads_more_than_one_batch(data: Database[Document], database: Database[Document]) -> None:
    target = shard_by_range(database, "target")
    many: Stages = [{"$set": {"n": {"$range": [0, 60]}}}, {"$unwind": "$n"}]
    many += [{"$project": {"_id": {"$add": [{"$multiply": ["$_id", 100]}, "$n"]}, "key": 1}}]
    data.ranged.aggregate([*many, {"$merge": {"into": {"db": database.name, "coll": "target"}}}])
    assert target.count_documents({}) == 60 * COUNT


@pytest.mark.parametrize(
    ("merge", "document", "code"),
    [
        ({}, {}, 51132),
        ({}, {"key": None}, 51132),
        ({}, {"key": [1]}, 51185),
        ({"on": "x"}, {"key": 1}, 51190),
        ({"whenMatched": "unknown"}, {"key": 1}, ErrorCode.BadValue),
        ({"on": "_id"}, {"key": 1}, ErrorCode.ShardKeyNotFound),
    ],
    ids=str,
)
def test_what_cannot_be_merged(database: Database[Document], merge: Document, document: Document, code: int) -> None:
    shard_by_range(database, "target")
    database.source.insert_one(document)
    with pytest.raises(OperationFailure) as failure:
        database.source.aggregate([{"$merge": {"into": "target", **merge}}])
    assert failure.value.code == code


@pytest.mark.parametrize("is_sharded", [False, True])
def test_a_merge_has_the_default_collation_of_its_source(
    client: Client, database: Database[Document], *, is_sharded: bool
) -> None:
    english = Collation("en_US")
    database.create_collection("source", collation=english).insert_one({"_id": 1, "a": 1})
    if is_sharded:
        database.source.create_index("a", collation=Collation("simple"))
        client.admin.command("shardCollection", database.source.full_name, key={"a": 1}, collation={"locale": "simple"})
    database.target.create_index("a", unique=True, collation=english)
    merge: Stages = [{"$merge": {"into": "target", "on": "a"}}]
    database.source.aggregate(merge)
    assert database.target.count_documents({"a": 1}) == 1
    with pytest.raises(OperationFailure) as failure:
        database.source.aggregate(merge, collation=Collation("simple"))
    assert failure.value.code == 51190


@pytest.mark.parametrize("source", ["ranged", "plain"])
def test_pipelines_of_a_merge(data: Database[Document], database: Database[Document], source: str) -> None:
    """Documents that match none are inserted as they are; a pipeline that hides the shard key is executed as well."""
    target = shard_by_range(database, "target")
    target.insert_one({"_id": 0, "key": 0, "old": 1})
    replacing = {"_id": "$_id", "key": "$key", "let": "$$given", "new": "$$new._id"}
    into = {"into": {"db": database.name, "coll": "target"}, "whenMatched": [{"$replaceWith": replacing}]}
    stages: Stages = [{"$project": {"key": 1, "result": {"$literal": True}}}, {"$merge": into}]
    data[source].aggregate(stages, let={"given": 7})
    stored = {each["_id"]: each for each in target.find()}
    assert stored.pop(0) == {"_id": 0, "key": 0, "let": 7, "new": 0}
    assert len(stored) == COUNT - 1
    assert all(each == {"_id": number, "key": number * 25, "result": True} for number, each in stored.items())


def test_errors_of_a_merge_have_their_context(data: Database[Document], database: Database[Document]) -> None:
    target = shard_by_range(database, "target")
    target.insert_many([{"_id": 0, "key": 100}, {"_id": 4, "key": 100}])
    for modes, text in (
        ({}, r"\$merge failed due to a DuplicateKey error :: caused by :: E11000"),
        ({"whenMatched": [{"$set": {"_id": 99}}]}, r"\$merge failed to update the matching document, did you attempt"),
    ):
        stages: Stages = [
            {"$match": {"_id": 0 if not modes else 4}},
            {"$merge": {"into": {"db": database.name, "coll": "target"}, **modes}},
        ]
        with pytest.raises(OperationFailure, match=f"^PlanExecutor error during aggregation :: caused by :: {text}"):
            data.ranged.aggregate(stages)


def test_orphans_do_not_count(cluster: RunningCluster, client: Client, database: Database[Document]) -> None:
    collection = shard_by_range(database)
    collection.insert_many([{"_id": n, "key": n * 25, "g": n % 3} for n in range(COUNT)])
    grouping: Stages = [{"$group": {"_id": "$g", "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}]
    with cluster.direct("shard0.0.shardd") as donor, fail_point(donor, "suspendRangeDeletion"):
        client.admin.command("split", collection.full_name, middle={"key": 250})
        client.admin.command("moveChunk", collection.full_name, find={"key": 0}, to=UPPER)
        assert [each["n"] for each in collection.aggregate(grouping)] == [14, 13, 13]
        [bucket] = collection.aggregate([{"$bucketAuto": {"groupBy": "$key", "buckets": 1}}])
        assert bucket["count"] == COUNT


def test_no_cursor_stays_open(data: Database[Document], lower_mongod: Client, upper_mongod: Client) -> None:
    def open_cursors() -> int:
        stages: Stages = [{"$currentOp": {"idleCursors": True, "localOps": True}}]
        stages.append({"$match": {"ns": data.ranged.full_name}})
        return sum(len(list(mongod.admin.aggregate(stages))) for mongod in (lower_mongod, upper_mongod))

    with data.ranged.aggregate([{"$unionWith": "other"}, {"$set": {"a": 1}}], batchSize=2) as cursor:
        next(cursor)
        assert open_cursors() > 0
    eventually(lambda: open_cursors() == 0)
    failing: Stages = [{"$facet": {"a": [{"$project": {"x": {"$divide": ["$x", 0]}}}]}}]
    with pytest.raises(OperationFailure):
        data.ranged.aggregate(failing)
    with pytest.raises(OperationFailure):
        data.ranged.aggregate([{"$unionWith": "other"}, {"$unknown": 1}])
    eventually(lambda: open_cursors() == 0)


def test_statistics_and_operations_of_all_shards_are_merged(data: Database[Document], client: Client) -> None:
    [counted] = data.ranged.aggregate([{"$collStats": {"count": {}}}, {"$group": {"_id": 1, "n": {"$sum": "$count"}}}])
    assert counted["n"] == COUNT
    indexes = {
        each["_id"]: each["n"]
        for each in data.ranged.aggregate(
            [{"$indexStats": {}}, {"$sortByCount": "$name"}, {"$project": {"n": "$count"}}]
        )
    }
    assert indexes["_id_"] == 2
    of_all: Document = {"$currentOp": {"allUsers": True, "idleConnections": True}}
    operations = client.admin.aggregate([of_all, {"$group": {"_id": "$shard"}}])
    assert {each["_id"] for each in operations} == {LOWER, UPPER}


def test_cached_plans_of_all_shards_are_merged(placed: Documents) -> None:
    placed.create_index("x")
    placed.create_index([("x", 1), ("y", 1)])
    placed.insert_many({"key": key, "x": key, "y": key} for key in range(0, 1_000, 10))
    for number in range(10):
        list(placed.find({"x": number, "y": {"$gte": number}}))
    cached = list(placed.aggregate([{"$planCacheStats": {}}]))
    assert {each["shard"] for each in cached} == {LOWER, UPPER}
    for stages in (
        [{"$count": "n"}],
        [{"$group": {"_id": None, "n": {"$sum": 1}}}],
        [{"$sort": {"host": 1}}, {"$count": "n"}],
    ):
        [counted] = placed.aggregate([{"$planCacheStats": {}}, *stages])
        assert counted["n"] == len(cached)


def test_explain_shows_the_halves(data: Database[Document]) -> None:
    def explained(*stages: Document, allow_disk_use: bool = False) -> Document:
        command = {"aggregate": "ranged", "pipeline": list(stages), "allowDiskUse": allow_disk_use}
        return data.command({**command, "explain": True})

    grouped = explained({"$group": {"_id": "$g", "n": {"$sum": 1}}})
    assert grouped["mergeType"] == "mongos"
    assert grouped["splitPipeline"]["shardsPart"] == [{"$group": {"_id": "$g", "n": {"$sum": 1}}}]
    merging = grouped["splitPipeline"]["mergerPart"]
    assert merging[0]["$mergeCursors"]["nss"] == data.ranged.full_name
    assert merging[1] == {"$group": {"_id": "$$ROOT._id", "n": {"$sum": "$$ROOT.n"}, "$doingMerge": True}}
    assert set(grouped["shards"]) == {LOWER, UPPER}
    assert explained({"$group": {"_id": "$g"}}, allow_disk_use=True)["mergeType"] == "anyShard"
    assert explained(BY_KEY)["mergeType"] == "mongos"
    assert explained(JOIN)["mergeType"] == "primaryShard"
    assert explained({"$merge": "ranged"})["splitPipeline"]["mergerPart"][-1] == {"$merge": "ranged"}


def test_sharded_data_distribution(cluster: RunningCluster, client: Client, database: Database[Document]) -> None:
    """Counts of owned documents and of orphans on each shard."""
    collection, empty = shard_by_range(database), shard_by_range(database, "empty")
    collection.insert_many([{"_id": n, "key": n * 25} for n in range(COUNT)])
    size = len(bson.encode({"_id": 0, "key": 0}))

    def distribution(*stages: dict[str, Any]) -> list[Document]:
        first: Stages = [{"$shardedDataDistribution": {}}, {"$match": {"ns": {"$regex": f"^{database.name}\\."}}}]
        return list(client.admin.aggregate([*first, *stages]))

    def shown(shard: str, owned: int, orphans: int) -> Document:
        return {
            "shardName": shard,
            "numOrphanedDocs": orphans,
            "numOwnedDocuments": owned,
            "ownedSizeBytes": owned * size if owned + orphans else None,
            "orphanedSizeBytes": orphans * size if owned + orphans else None,
        }

    with cluster.direct("shard0.0.shardd") as donor, fail_point(donor, "suspendRangeDeletion"):
        client.admin.command("split", collection.full_name, middle={"key": 250})
        client.admin.command("moveChunk", collection.full_name, find={"key": 0}, to=UPPER)
        assert distribution() == [
            {"ns": empty.full_name, "shards": [shown(LOWER, 0, 0), shown(UPPER, 0, 0)]},
            {"ns": collection.full_name, "shards": [shown(LOWER, 10, 10), shown(UPPER, 30, 0)]},
        ]
        total: Document = {"$group": {"_id": "$ns", "n": {"$sum": "$shards.numOwnedDocuments"}}}
        totals = {each["_id"]: each["n"] for each in distribution({"$unwind": "$shards"}, total)}
        assert totals == {empty.full_name: 0, collection.full_name: COUNT}


def test_sharded_data_distribution_of_time_series_and_recreated_collections(
    cluster: RunningCluster, client: Client, database: Database[Document]
) -> None:
    """Orphans of a former collection are none of the present one's; a mongod does not count buckets."""

    def distribution(collection: Documents) -> list[tuple[str, int, int | None]]:
        name = collection.name if collection.name != "series" else f"system.buckets.{collection.name}"
        stages: Stages = [{"$shardedDataDistribution": {}}, {"$match": {"ns": f"{database.name}.{name}"}}]
        [found] = client.admin.aggregate(stages)
        return [(each["shardName"], each["numOrphanedDocs"], each["numOwnedDocuments"]) for each in found["shards"]]

    with cluster.direct("shard0.0.shardd") as donor, fail_point(donor, "suspendRangeDeletion"):
        collection = shard_by_range(database)
        collection.insert_many([{"key": n * 25} for n in range(COUNT)])
        client.admin.command("moveChunk", collection.full_name, find={"key": 0}, to=UPPER)
        assert distribution(collection) == [(LOWER, 20, 0), (UPPER, 0, 40)]
        collection.drop()
        shard_collection(database, collection.name, {"key": 1})
        collection.insert_many([{"key": n} for n in range(10)])
        assert distribution(collection) == [(LOWER, 0, 10)]
        shard_collection(database, "series", {"meta": 1}, timeseries={"timeField": "at", "metaField": "meta"})
        database.series.insert_one({"at": datetime(2024, 1, 1), "meta": 1})
        assert distribution(database.series) == [(LOWER, 0, None)]


@pytest.mark.parametrize(
    ("db", "stage", "code"), [("admin", 5, 6789100), ("admin", {"a": 1}, 6789100), ("config", {}, 6789102)]
)
def test_wrong_sharded_data_distribution(client: Client, db: str, stage: object, code: int) -> None:
    with pytest.raises(OperationFailure) as refused:
        client[db].aggregate([{"$shardedDataDistribution": stage}])
    assert refused.value.code == code


@pytest.mark.parametrize("pipeline", [[{"$count": "n"}], [{"$group": {"_id": None, "n": {"$sum": 1}}}]], ids=str)
def test_an_empty_first_batch_of_a_count(data: Database[Document], pipeline: Stages) -> None:
    command = {"aggregate": "ranged", "pipeline": pipeline, "cursor": {"batchSize": 0}}
    cursor = data.command(command)["cursor"]
    assert cursor["firstBatch"] == []
    more = data.command({"getMore": cursor["id"], "collection": "ranged"})["cursor"]
    assert [each["n"] for each in more["nextBatch"]] == [data.ranged.count_documents({})]
