"""Changes of the granularity of sharded time-series collections, with routers that have cached the former one."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

import pytest
from bson.son import SON
from pymongo.database import Database
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from tests.integration.sharded import LOWER, UPPER, Document, Documents, catalog_entry
from tests.integration.time_series.test_time_series import OPTIONS, at, measurements, shard_series, targeted
from tests.local_cluster import Client

HOUR = 3600


@pytest.fixture
def series(database: Database[Document]) -> Documents:
    """One sensor's measurements at every hour of a day, those before noon on one shard, the others on the other."""
    noon = SON([("meta", 1), ("control.min.at", at(12 * HOUR))])
    series = shard_series(database, SON([("sensor", 1), ("at", 1)]), noon)
    series.insert_many([{"at": at(hour * HOUR), "sensor": 1, "value": hour} for hour in range(24)])
    return series


def change(series: Documents, granularity: str, **other: Any) -> dict[str, Any]:  # noqa: ANN401 - any field
    changed: dict[str, Any] = series.database.command(
        "collMod", series.name, timeseries={"granularity": granularity}, **other
    )
    return changed


def hours(series: Documents, low: float, high: float) -> list[int]:
    found = series.find({"sensor": 1, "at": {"$gte": at(low * HOUR), "$lt": at(high * HOUR)}}).sort("at")
    return [each["value"] for each in found]


def check_nothing_left(series: Documents, *mongods: Client) -> None:
    entry = catalog_entry(series.database.client, f"{series.database.name}.system.buckets.{series.name}")
    assert entry is not None
    assert "allowMigrations" not in entry
    for mongod in mongods:
        assert mongod.config.collection_critical_sections.count_documents({"_id": entry["_id"]}) == 0
    assert series.database.command("checkMetadataConsistency", 1, checkIndexes=True)["cursor"]["firstBatch"] == []


def test_a_change_on_all_shards_and_in_the_catalog(
    series: Documents, lower_mongod: Client, upper_mongod: Client
) -> None:
    database = series.database
    reply = change(series, "hours", expireAfterSeconds=10**9)
    assert list(reply["raw"].values()) == [{"ok": 1.0}] * 2
    entry = catalog_entry(database.client, f"{database.name}.system.buckets.series")
    assert entry is not None
    wide = {**OPTIONS, "granularity": "hours", "bucketMaxSpanSeconds": 2_592_000}
    assert entry["timeseriesFields"] == wide
    for mongod in (lower_mongod, upper_mongod):
        [buckets] = mongod[database.name].list_collections(filter={"name": "system.buckets.series"})
        assert (buckets["options"]["timeseries"], buckets["options"]["expireAfterSeconds"]) == (wide, 10**9)
    [view] = lower_mongod[database.name]["system.views"].find()
    assert view["pipeline"][0]["$_internalUnpackBucket"]["bucketMaxSpanSeconds"] == 2_592_000
    check_nothing_left(series, lower_mongod, upper_mongod)


def test_routers_that_nobody_told(series: Documents, other_client: Client) -> None:
    """A measurement of the afternoon now belongs to a bucket that begins before noon, at the beginning of the day."""
    stale = other_client[series.database.name]["series"]
    assert hours(stale, 13, 15) == [13, 14]
    assert targeted(stale, {"sensor": 1, "at": {"$gte": at(20 * HOUR)}}) == [UPPER]
    change(series, "hours")
    stale.insert_one({"at": at(20.5 * HOUR), "sensor": 1, "value": 205})
    assert hours(stale, 20, 21) == hours(series, 20, 21) == [20, 205]
    assert targeted(stale, {"sensor": 1, "at": {"$gte": at(20 * HOUR)}}) == [LOWER, UPPER]
    series.insert_one({"at": at(21.5 * HOUR), "sensor": 1, "value": 215})
    assert hours(stale, 0, 24) == [*range(21), 205, 21, 215, 22, 23]
    assert stale.delete_many({"sensor": 1}).deleted_count == 26
    assert series.count_documents({}) == 0


def test_a_read_that_has_resolved_the_view_before(series: Documents, other_client: Client) -> None:
    """The span in a client's pipeline, or in a stale router's, gives way to the catalog's."""
    change(series, "hours")
    series.insert_one({"at": at(20.5 * HOUR), "sensor": 1, "value": 205})
    buckets = other_client[series.database.name]["system.buckets.series"]
    narrow = {"$_internalUnpackBucket": {"timeField": "at", "metaField": "sensor", "bucketMaxSpanSeconds": 3600}}
    afternoon = {"$match": {"sensor": 1, "at": {"$gte": at(20 * HOUR), "$lt": at(21 * HOUR)}}}
    found = buckets.aggregate([narrow, afternoon, {"$sort": {"at": 1}}])
    assert [each["value"] for each in found] == [20, 205]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"timeseries": {"granularity": "seconds"}}, ErrorCode.InvalidOptions),
        ({"timeseries": {"granularity": "days"}}, ErrorCode.BadValue),
        ({"timeseries": {"bucketMaxSpanSeconds": 5}}, 40415),
        ({"timeseries": {"granularity": "hours"}, "expireAfterSeconds": -5}, ErrorCode.InvalidOptions),
        ({"timeseries": {"granularity": "hours"}, "index": {"name": "none", "hidden": True}}, ErrorCode.IndexNotFound),
        ({"timeseries": {"granularity": "hours"}, "validator": {"a": 1}}, ErrorCode.InvalidOptions),
    ],
    ids=str,
)
def test_refusals_change_nothing(
    series: Documents, lower_mongod: Client, upper_mongod: Client, options: dict[str, Any], code: int
) -> None:
    change(series, "minutes")
    with pytest.raises(OperationFailure) as refused:
        series.database.command("collMod", "series", **options)
    assert refused.value.code == code
    entry = catalog_entry(series.database.client, f"{series.database.name}.system.buckets.series")
    assert entry is not None
    assert entry["timeseriesFields"]["granularity"] == "minutes"
    check_nothing_left(series, lower_mongod, upper_mongod)
    assert hours(series, 0, 24) == list(range(24))


def test_only_for_time_series_collections(series: Documents) -> None:
    series.database.plain.insert_one({})
    for name in ("plain", "system.buckets.series"):
        with pytest.raises(OperationFailure, match="for a non-timeseries collection") as refused:
            series.database.command("collMod", name, timeseries={"granularity": "hours"})
        assert refused.value.code == 6201808


@contextmanager
def writing(*collections: Documents) -> Iterator[list[int]]:
    """Insert measurements through all of these during the block; return the numbers of the acknowledged ones."""
    acknowledged: list[int] = []
    stop = Event()

    def write(position: int, collection: Documents) -> None:
        number = position
        while not stop.is_set():
            [measurement] = measurements(1, sensors=3, first=number * 400)
            collection.insert_one(measurement)
            acknowledged.append(number)
            number += len(collections)

    writers = [Thread(target=write, args=each) for each in enumerate(collections)]
    for each in writers:
        each.start()
    try:
        yield acknowledged
    finally:
        stop.set()
        for each in writers:
            each.join()


def test_writers_beside_it(series: Documents, other_client: Client) -> None:
    series.delete_many({})
    stale = other_client[series.database.name]["series"]
    with writing(series, stale) as acknowledged:
        for granularity in ("minutes", "hours"):
            change(series, granularity)
    assert len(acknowledged) > 2
    expected = sorted(number * 400 for number in acknowledged)
    for each in (series, stale):
        assert sorted(document["value"] for document in each.find()) == expected
        latest = expected[-1]
        assert each.count_documents({"at": {"$gte": at(latest)}}) == 1
