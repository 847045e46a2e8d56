"""Sharded time-series collections: their buckets are sharded, and move."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from threading import Event, Thread
from typing import Any

import pytest
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.son import SON
from pymongo.database import Database
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from tests.fail_points import fail_point
from tests.integration.sharded import LOWER, UPPER, Document, Documents, catalog_entry, placement, shard_collection
from tests.local_cluster import Client, RunningCluster

START = datetime(2024, 1, 1)
OPTIONS = {"timeField": "at", "metaField": "sensor"}


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def measurements(count: int = 100, sensors: int = 10, first: int = 0) -> list[Document]:
    return [{"at": at(i), "sensor": i % sensors, "value": i} for i in range(first, first + count)]


def shard_series(
    database: Database[Document], key: Mapping[str, Any], split_at: Mapping[str, Any], name: str = "series"
) -> Documents:
    """A new collection sharded by a key; the buckets below ``split_at`` are on `LOWER`, the others on `UPPER`."""
    shard_collection(database, name, key, timeseries=OPTIONS)
    buckets = f"{database.name}.system.buckets.{name}"
    database.client.admin.command("split", buckets, middle=split_at)
    database.client.admin.command("moveChunk", buckets, find=split_at, to=UPPER)
    return database[name]


@pytest.fixture
def series(database: Database[Document]) -> Documents:
    """A hundred measurements of ten sensors, half of them on each shard."""
    found = shard_series(database, {"sensor": 1}, {"meta": 5})
    found.insert_many(measurements())
    return found


def targeted(series: Documents, query: Mapping[str, Any]) -> list[str]:
    return sorted(series.find(query).explain()["shards"])


def refusal(database: Database[Document], **options: Any) -> tuple[int, str]:  # noqa: ANN401 - any option
    with pytest.raises(OperationFailure) as refused:
        shard_collection(database, "refused", options.pop("key", {"sensor": 1}), **options)
    assert refused.value.code is not None
    assert refused.value.details is not None
    return refused.value.code, refused.value.details["errmsg"]


def test_sharded_by_its_buckets(series: Documents, client: Client, lower_mongod: Client, upper_mongod: Client) -> None:
    database = series.database
    entry = catalog_entry(client, f"{database.name}.system.buckets.series")
    assert entry is not None
    assert entry["key"] == {"meta": 1}
    assert entry["timeseriesFields"] == {**OPTIONS, "granularity": "seconds"}
    assert catalog_entry(client, f"{database.name}.series") is None
    held = [mongod[database.name]["system.buckets.series"].distinct("meta") for mongod in (lower_mongod, upper_mongod)]
    assert held == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    kinds = {each["name"]: each["type"] for each in database.list_collections()}
    assert (kinds["series"], kinds["system.buckets.series"]) == ("timeseries", "collection")


def test_reads(series: Documents) -> None:
    assert series.count_documents({}) == series.estimated_document_count() == 100
    assert [each["value"] for each in series.find({"sensor": 7}).sort("value", -1).limit(3)] == [97, 87, 77]
    assert [each["value"] for each in series.find().sort("value").batch_size(7)] == list(range(100))
    assert sorted(series.distinct("sensor", {"value": {"$gte": 97}})) == [7, 8, 9]
    groups = series.aggregate([{"$group": {"_id": "$sensor", "mean": {"$avg": "$value"}}}, {"$sort": {"_id": 1}}])
    assert list(groups) == [{"_id": sensor, "mean": 45.0 + sensor} for sensor in range(10)]
    joined = series.database["sensors"]
    joined.insert_one({"sensor": 8})
    lookup = {"from": "series", "localField": "sensor", "foreignField": "sensor", "as": "found"}
    assert [len(each["found"]) for each in joined.aggregate([{"$lookup": lookup}])] == [10]


def test_sorts_by_metadata(series: Documents) -> None:
    """The shards sort buckets, or else keep the order of the measurements."""

    def sensors(*stages: Document) -> list[int]:
        return [each["sensor"] for each in series.aggregate([*stages, {"$sort": {"sensor": -1}}])]

    in_order = [number for number in range(9, -1, -1) for _ in range(10)]
    assert sensors() == sensors({"$project": {"sensor": 1}}) == sensors({"$match": {"value": {"$gte": 0}}}) == in_order
    assert [each["sensor"] for each in series.find({"sensor": {"$lt": 8}}).sort("sensor", -1).skip(8).limit(4)] == [
        *(7, 7, 6, 6)
    ]
    assert sorted(series.find({"sensor": 7}).sort("sensor").explain()["shards"]) == [UPPER]
    assert sorted(series.find({"sensor": {"$gte": 4}}).sort("sensor").explain()["shards"]) == [LOWER, UPPER]


def test_targeting_by_metadata_and_time(database: Database[Document]) -> None:
    series = shard_series(database, SON([("sensor", 1), ("at", 1)]), SON([("meta", 1), ("control.min.at", at(36_000))]))
    series.insert_many([{"at": at(3600 * hour), "sensor": sensor} for hour in range(20) for sensor in (0, 1, 2)])
    assert targeted(series, {"sensor": 0}) == [LOWER]
    assert targeted(series, {"sensor": 1, "at": {"$lt": at(30_000)}}) == [LOWER]
    assert targeted(series, {"sensor": 1, "at": {"$gte": at(60_000)}}) == [UPPER]
    # A bucket that begins before the boundary may reach beyond it.
    assert targeted(series, {"sensor": 1, "at": {"$gte": at(37_000)}}) == [LOWER, UPPER]
    assert targeted(series, {"at": at(0)}) == [LOWER, UPPER]
    assert series.count_documents({"sensor": 1, "at": {"$gte": at(36_000)}}) == 10


def test_measurements_before_1970(database: Database[Document]) -> None:
    """Each is in a bucket that begins with it, on the shard that owns this time."""
    boundary = datetime(1969, 12, 31, 23, 59, 30)
    series = shard_series(database, {"at": 1}, {"control.min.at": boundary})
    times = [boundary + timedelta(seconds=seconds) for seconds in range(-60, 60, 7)]
    for number, time in enumerate(times):
        series.insert_one({"at": time, "sensor": number})
    assert [each["at"] for each in series.find().sort("at")] == times
    assert [series.count_documents({"at": time}) for time in times] == [1] * len(times)


def test_stale_router(series: Documents, other_client: Client) -> None:
    stale = other_client[series.database.name]["series"]
    stale.insert_many(measurements(first=100), ordered=False)
    assert stale.count_documents({"sensor": 7}) == 20
    assert stale.delete_many({"sensor": {"$in": [2, 7]}}).deleted_count == 40
    assert series.count_documents({}) == 160
    series.drop()
    stale.insert_one({"_id": 1})
    assert list(series.find()) == [{"_id": 1}]


def test_existing_collection(database: Database[Document], other_client: Client) -> None:
    database.client.admin.command("enableSharding", database.name, primaryShard=LOWER)
    series = database.create_collection("series", timeseries={**OPTIONS, "granularity": "minutes"})
    elsewhere = other_client[database.name]["series"]
    elsewhere.insert_many(measurements(20))
    with pytest.raises(OperationFailure, match="Please create an index that starts with the proposed shard key"):
        shard_collection(database, "series", {"sensor": "hashed"})
    series.create_index([("sensor", "hashed")])
    shard_collection(database, "series", {"sensor": "hashed"})
    buckets = f"{database.name}.system.buckets.series"
    entry = catalog_entry(database.client, buckets)
    assert entry is not None
    assert entry["timeseriesFields"] == {**OPTIONS, "granularity": "minutes", "bucketMaxSpanSeconds": 86_400}
    database.client.admin.command("split", buckets, middle={"meta": Int64(0)})
    database.client.admin.command("moveChunk", buckets, bounds=[{"meta": Int64(0)}, {"meta": MaxKey()}], to=UPPER)
    elsewhere.insert_many(measurements(20, first=20))
    assert series.count_documents({}) == elsewhere.count_documents({}) == 40


def test_updates_and_deletes(series: Documents) -> None:
    run = series.database.command

    def errors(command: str, statement: Document) -> list[int]:
        field = {"update": "updates", "delete": "deletes", "insert": "documents"}[command]
        return [each["code"] for each in run({command: "series", field: [statement]}).get("writeErrors", ())]

    assert run({"delete": "series", "deletes": [{"q": {"sensor": 1}, "limit": 0}]})["n"] == 10
    assert errors("delete", {"q": {"sensor": 3}, "limit": 1}) == [ErrorCode.IllegalOperation]
    assert errors("delete", {"q": {"value": 3}, "limit": 0}) == [ErrorCode.InvalidOptions]
    assert errors("update", {"q": {"sensor": 3}, "u": {"$set": {"sensor": 4}}, "multi": True}) == [72]
    assert errors("update", {"q": {}, "u": {"$set": {"sensor.a": 4}}, "multi": True}) == [31025]
    assert errors("update", {"q": {}, "u": {"$set": {"value": 4}}, "multi": False}) == [72]
    assert errors("insert", {"sensor": 3}) == [5743702]
    assert series.count_documents({}) == 90


def test_updates_of_other_metadata(database: Database[Document]) -> None:
    series = shard_series(database, {"sensor.id": 1}, {"meta.id": 5})
    series.insert_many([{"at": at(i), "sensor": {"id": i, "room": i % 2}} for i in range(10)])
    moved = series.update_many({"sensor.room": 1}, {"$set": {"sensor.room": 2}})
    assert (moved.matched_count, moved.modified_count) == (5, 5)
    assert [each["sensor"]["id"] for each in series.find({"sensor.room": 2}).sort("at")] == [1, 3, 5, 7, 9]


def test_indexes_and_statistics(series: Documents, other_client: Client) -> None:
    elsewhere = other_client[series.database.name]["series"]
    elsewhere.create_index([("sensor.room", 1), ("at", 1)], name="room")
    keys = {each["name"]: dict(each["key"]) for each in series.list_indexes()}
    assert keys == {"meta_1": {"sensor": 1}, "room": {"sensor.room": 1, "at": 1}}
    shown = sorted((each["name"], each["shard"]) for each in series.aggregate([{"$indexStats": {}}]))
    assert shown == [("meta_1", LOWER), ("meta_1", UPPER), ("room", LOWER), ("room", UPPER)]
    series.database.command("dropIndexes", "series", index=SON([("sensor.room", 1), ("at", 1)]))
    assert [each["name"] for each in series.list_indexes()] == ["meta_1"]
    with pytest.raises(OperationFailure, match="Cannot drop the only compatible index"):
        series.drop_index("meta_1")
    stats = series.database.command("collStats", "series")
    assert (stats["ns"], stats["sharded"], stats["timeseries"]["bucketCount"]) == (series.full_name, True, 10)


@pytest.mark.parametrize("key", ["at", "sensor"])
def test_there_are_no_unique_indexes(series: Documents, key: str) -> None:
    with pytest.raises(OperationFailure) as refused:
        series.create_index(key, unique=True)
    assert refused.value.code == ErrorCode.InvalidOptions
    with pytest.raises(OperationFailure) as refused:
        series.create_index([("at", 1)], prepareUnique=True)
    assert refused.value.code == ErrorCode.CannotCreateIndex


def test_expiry_changed_on_all_shards(series: Documents, lower_mongod: Client, upper_mongod: Client) -> None:
    database = series.database
    database.command("collMod", "series", expireAfterSeconds=1_000_000_000)
    for mongod in (lower_mongod, upper_mongod):
        [buckets] = mongod[database.name].list_collections(filter={"name": "system.buckets.series"})
        assert buckets["options"]["expireAfterSeconds"] == 1_000_000_000
    for unchanged in ({}, {"granularity": "seconds"}):
        assert database.command("collMod", "series", timeseries=unchanged)["ok"] == 1.0


def test_an_index_is_hidden_by_its_key_in_terms_of_measurements(series: Documents) -> None:
    series.create_index([("sensor", 1), ("value", -1)])
    key = {"sensor": 1, "value": -1}
    for hidden in (True, False):
        reply = series.database.command("collMod", "series", index={"keyPattern": key, "hidden": hidden})
        answers = [(each["hidden_old"], each["hidden_new"]) for each in reply["raw"].values()]
        assert answers == [(not hidden, hidden)] * 2
    series.create_index([("place", "2dsphere")])
    reply = series.database.command("collMod", "series", index={"keyPattern": {"place": "2dsphere"}, "hidden": True})
    assert [each["hidden_new"] for each in reply["raw"].values()] == [True] * 2
    with pytest.raises(OperationFailure, match=r'measurement fields .*: place: "text" Command request: \{ col') as no:
        series.database.command("collMod", "series", index={"keyPattern": {"place": "text"}, "hidden": True})
    assert no.value.code == ErrorCode.IndexNotFound
    with pytest.raises(OperationFailure, match=r"control\.min\.meta: 1, control\.max\.meta: 1"):
        series.database.command("collMod", "series", index={"keyPattern": {"meta": 1}, "hidden": True})


def test_open_buckets_of_a_range_that_leaves(database: Database[Document]) -> None:
    """Later measurements, which this shard keeps, do not go into a bucket that it has given away."""
    key = SON([("sensor", 1), ("at", 1)])
    shard_collection(database, "series", key, timeseries=OPTIONS)
    series, admin = database["series"], database.client.admin
    buckets = f"{database.name}.system.buckets.series"
    series.insert_many([{"at": at(60 * i), "sensor": 1} for i in range(20)])
    admin.command("split", buckets, middle=SON([("meta", 1), ("control.min.at", at(1200))]))
    admin.command("moveChunk", buckets, find=SON([("meta", 1), ("control.min.at", at(0))]), to=UPPER)
    assert placement(database.client, buckets) == [UPPER, LOWER]
    series.insert_many([{"at": at(60 * i), "sensor": 1} for i in range(20, 40)])
    assert [each["at"] for each in series.find({"sensor": 1}).sort("at")] == [at(60 * i) for i in range(40)]


def test_moves_beside_writers(series: Documents, other_client: Client) -> None:
    admin, buckets = series.database.client.admin, f"{series.database.name}.system.buckets.series"
    elsewhere = other_client[series.database.name]["series"]
    inserted, stop = 0, Event()

    def write() -> None:
        nonlocal inserted
        while not stop.is_set():
            elsewhere.insert_many(measurements(5, first=inserted))
            inserted += 5

    writer = Thread(target=write)
    writer.start()
    try:
        admin.command("moveChunk", buckets, find={"meta": 5}, to=LOWER)
        admin.command("moveChunk", buckets, find={"meta": 5}, to=UPPER)
    finally:
        stop.set()
        writer.join()
    assert inserted
    assert series.count_documents({}) == len(list(series.find())) == 100 + inserted


def test_counts_beside_orphans(series: Documents, cluster: RunningCluster) -> None:
    """The upper shard has buckets of three sensors that it no longer owns; each bucket has ten measurements."""
    admin, buckets = series.database.client.admin, f"{series.database.name}.system.buckets.series"
    admin.command("split", buckets, middle={"meta": 7})
    with cluster.direct("shard1.0.shardd") as donor, fail_point(donor, "suspendRangeDeletion"):
        admin.command("moveChunk", buckets, find={"meta": 7}, to=LOWER)
        deletes = [{"q": {"sensor": {"$in": each}}, "limit": 0} for each in ([4, 5, 7], [6, 7, 8], [5])]
        assert series.database.command("delete", "series", deletes=deletes)["n"] == 50
        assert sorted(series.distinct("sensor")) == [0, 1, 2, 3, 9]
        refused = series.database.command("delete", "series", deletes=[*deletes, {"q": {"value": 1}, "limit": 0}])
        assert [(each["index"], each["code"]) for each in refused["writeErrors"]] == [(3, ErrorCode.InvalidOptions)]
    assert series.count_documents({}) == 50


def test_counts_of_updates_beside_orphans(database: Database[Document], cluster: RunningCluster) -> None:
    series = shard_series(database, {"sensor.id": 1}, {"meta.id": 5})
    series.insert_many([{"at": at(i), "sensor": {"id": i % 10, "room": i % 2}} for i in range(30)])
    admin, buckets = database.client.admin, f"{database.name}.system.buckets.series"
    admin.command("split", buckets, middle={"meta.id": 7})
    with cluster.direct("shard1.0.shardd") as donor, fail_point(donor, "suspendRangeDeletion"):
        admin.command("moveChunk", buckets, find={"meta.id": 7}, to=LOWER)
        moved = series.update_many({"sensor.room": 1}, {"$set": {"sensor.room": 2}})
        assert (moved.matched_count, moved.modified_count) == (15, 15)
        again = series.update_many({"sensor.room": 2}, {"$set": {"sensor.room": 2}})
        assert (again.matched_count, again.modified_count) == (15, 0)


def test_reads_and_hints_beside_orphans(database: Database[Document], cluster: RunningCluster) -> None:
    """The filter for orphans precedes the buckets, together with the other required stages."""
    series = shard_series(database, {"sensor.id": 1}, {"meta.id": 5})
    series.create_index([("sensor.loc", "2dsphere")])
    series.create_index([("sensor.id", 1), ("at", 1)])
    places = [{"type": "Point", "coordinates": [number, 0]} for number in range(10)]
    series.insert_many(
        [{"at": at(i), "sensor": {"id": i % 10, "loc": places[i % 10]}, "spot": places[i % 10]} for i in range(30)]
    )
    admin, buckets = database.client.admin, f"{database.name}.system.buckets.series"
    hint = SON([("sensor.id", 1), ("at", 1)])

    def nearest(key: str, *stages: Document) -> list[int]:
        near = {"near": places[0], "key": key, "distanceField": "d"}
        return [each["sensor"]["id"] for each in series.aggregate([{"$geoNear": near}, *stages])]

    admin.command("split", buckets, middle={"meta.id": 7})
    with cluster.direct("shard1.0.shardd") as donor, fail_point(donor, "suspendRangeDeletion"):
        admin.command("moveChunk", buckets, find={"meta.id": 7}, to=LOWER)
        for key in ("sensor.loc", "spot"):
            assert nearest(key) == [number for number in range(10) for _ in range(3)]
            assert nearest(key, {"$match": {"sensor.id": {"$gte": 6}}}, {"$limit": 4}) == [6, 6, 6, 7]
        in_order = [each["sensor"]["id"] for each in series.find(hint=hint).sort("sensor.id", -1)]
        assert in_order == [number for number in range(9, -1, -1) for _ in range(3)]
        moved = [{"q": {"sensor.id": {"$gte": 6}}, "u": {"$set": {"sensor.room": 1}}, "multi": True, "hint": hint}]
        assert database.command("update", "series", updates=moved)["n"] == 12
        raw = {"meta.id": 1, "control.min.at": 1, "control.max.at": 1}
        refused = database.command("delete", "series", deletes=[{"q": {}, "limit": 0, "hint": raw}])
        assert [each["code"] for each in refused["writeErrors"]] == [ErrorCode.BadValue]
        assert database.command("delete", "series", deletes=[{"q": {}, "limit": 0, "hint": hint}])["n"] == 30


def test_refusals(database: Database[Document]) -> None:
    other = "only the time field or meta field can be part of shard key pattern"
    assert refusal(database, timeseries=OPTIONS, key={"value": 1}) == (5914001, other)
    assert refusal(database, timeseries=OPTIONS, key={"_id": 1}) == (5914001, other)
    assert refusal(database, timeseries=OPTIONS, key=SON([("at", 1), ("sensor", 1)]))[0] == 5914000
    assert refusal(database, timeseries={"metaField": "sensor"})[0] == 40414
    assert refusal(database, timeseries={**OPTIONS, "granularity": "days"})[0] == ErrorCode.BadValue
    assert refusal(database, timeseries={**OPTIONS, "bucketMaxSpanSeconds": 5})[0] == 5510500
    database.create_collection("refused", timeseries=OPTIONS)
    different = "the 'timeseries' spec provided must match that of exists 'DB.refused' collection"
    assert refusal(database, timeseries={**OPTIONS, "granularity": "hours"}) == (
        *(5731500, different.replace("DB", database.name)),
    )


def test_resharding_refused(series: Documents) -> None:
    with pytest.raises(OperationFailure, match="is not supported") as refused:
        series.database.client.admin.command(
            "reshardCollection", f"{series.database.name}.system.buckets.series", key={"meta.a": 1}
        )
    assert refused.value.code == ErrorCode.NotImplemented


def test_primary_shard_without_chunks(database: Database[Document], other_client: Client) -> None:
    shard_collection(database, "series", {"sensor": 1}, timeseries=OPTIONS)
    series, elsewhere = database["series"], other_client[database.name]["series"]
    series.insert_many(measurements(20))
    database.client.admin.command("movePrimary", database.name, to=UPPER)
    elsewhere.insert_many(measurements(20, first=20))
    assert series.count_documents({}) == elsewhere.count_documents({}) == 40
    assert [each["name"] for each in elsewhere.list_indexes()] == ["meta_1"]


@pytest.mark.parametrize("target", ["plain", "sharded"])
def test_buckets_are_not_renamed(series: Documents, target: str) -> None:
    """As mongod refuses it; the coordinator must find that out before its point of no return."""
    database = series.database
    database.plain.insert_one({})
    shard_collection(database, "sharded", {"a": 1})
    rename = {"renameCollection": f"{database.name}.system.buckets.series", "to": f"{database.name}.{target}"}
    with pytest.raises(OperationFailure) as refused:
        database.client.admin.command({**rename, "dropTarget": True}, maxTimeMS=30_000)
    assert refused.value.details is not None
    assert (refused.value.code, refused.value.details["errmsg"]) == (
        20,
        "Renaming system.buckets collections is not allowed",
    )
    series.insert_many(measurements(first=100))
    assert series.count_documents({}) == 200
