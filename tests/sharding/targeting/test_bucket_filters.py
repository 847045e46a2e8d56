"""Filters of measurements as filters of buckets."""

from datetime import datetime, timedelta
from typing import Any

import bson
import pytest

from shardwright.sharding.targeting.bucket_filters import bucket_filter, meta_filter
from shardwright.sharding.time_series import TimeSeriesFields

FIELDS = TimeSeriesFields("at", "sensor")
SPAN = timedelta(hours=1)
ONE, TWO = datetime(2024, 1, 1), datetime(2024, 1, 2)
BEGINS = "control.min.at"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}),
        ({"sensor": 1, "value": 2}, {"meta": 1}),
        ({"sensor.a": {"$gt": 1}, "sensors": 2, "_id": 3}, {"meta.a": {"$gt": 1}}),
        ({"at": ONE}, {BEGINS: {"$gte": ONE - SPAN, "$lte": ONE}}),
        ({"at": {"$gte": ONE, "$lt": TWO}}, {BEGINS: {"$gte": ONE - SPAN, "$lte": TWO}}),
        ({"at": {"$in": [TWO, ONE]}}, {BEGINS: {"$gte": ONE - SPAN, "$lte": TWO}}),
        ({"at": {"$in": [TWO, None]}}, {}),
        ({"at": {"$ne": ONE}}, {}),
        ({"at": 5}, {}),
        ({"at": {"$gt": 5}}, {}),
        ({"$and": [{"sensor": 1}, {"value": 2}]}, {"$and": [{"meta": 1}, {}]}),
        ({"$or": [{"sensor": 1}, {"value": 2}]}, {"$or": [{"meta": 1}, {}]}),
        ({"$nor": [{"sensor": 1}], "$expr": {"$eq": ["$sensor", 1]}}, {}),
    ],
)
def test_filters_for_targeting(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert bson.decode(bucket_filter(bson.encode(given), FIELDS)) == expected


def test_open_bounds_of_time() -> None:
    options = bson.CodecOptions[dict[str, Any]](datetime_conversion=bson.DatetimeConversion.DATETIME_MS)
    after = bson.decode(bucket_filter(bson.encode({"at": {"$gt": ONE}}), FIELDS), options)[BEGINS]
    before = bson.decode(bucket_filter(bson.encode({"at": {"$lte": ONE}}), FIELDS), options)[BEGINS]
    assert (int(after["$lte"]), int(before["$gte"])) == (2**63 - 1, -(2**63))
    assert after["$gte"].as_datetime().replace(tzinfo=None) == ONE - SPAN
    assert before["$lte"].as_datetime().replace(tzinfo=None) == ONE


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}),
        ({"sensor": 1}, {"meta": 1}),
        (
            {"$nor": [{"sensor.a": 1}, {"$and": [{"sensor": {"$exists": True}}]}]},
            {"$nor": [{"meta.a": 1}, {"$and": [{"meta": {"$exists": True}}]}]},
        ),
        ({"sensor": 1, "value": 2}, None),
        ({"at": ONE}, None),
        ({"$or": [{"sensor": 1}, {"value": 2}]}, None),
        ({"$expr": {"$eq": ["$sensor", 1]}}, None),
    ],
)
def test_filters_of_writes(given: dict[str, Any], expected: dict[str, Any] | None) -> None:
    found = meta_filter(bson.encode(given), FIELDS)
    assert (None if found is None else bson.decode(found)) == expected


def test_filters_without_metadata() -> None:
    fields = TimeSeriesFields("at")
    assert bson.decode(bucket_filter(bson.encode({"sensor": 1, "at": ONE}), fields)) == {
        BEGINS: {"$gte": ONE - SPAN, "$lte": ONE}
    }
    assert meta_filter(bson.encode({"sensor": 1}), fields) is None
