"""Shard keys of time-series collections, and the buckets that measurements belong to."""

from datetime import datetime
from typing import Any

import bson
import pytest
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.datetime_ms import DatetimeMS

from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.time_series import TimeSeriesFields, buckets_of, measurements_of, on_buckets, on_measurements
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

FIELDS = TimeSeriesFields("at", "sensor")
IN_MILLISECONDS: CodecOptions[dict[str, Any]] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
TIME = datetime(2024, 5, 17, 13, 47, 21, 345000)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ({"sensor": 1}, {"meta": 1}),
        ({"sensor": "hashed"}, {"meta": "hashed"}),
        ({"sensor.a": 1, "sensor.b.c": "hashed"}, {"meta.a": 1, "meta.b.c": "hashed"}),
        ({"at": 1}, {"control.min.at": 1}),
        ({"sensor": 1, "at": 1.0}, {"meta": 1, "control.min.at": 1.0}),
        ({"at": -1}, {"control.max.at": -1, "control.min.at": -1}),
    ],
)
def test_keys_of_buckets(key: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(FIELDS.buckets_key(key).items()) == list(expected.items())


@pytest.mark.parametrize(
    ("key", "code", "message"),
    [
        ({"at": 1, "sensor": 1}, 5914000, "the time field 'at' can be only at the end of the shard key pattern"),
        ({"value": 1}, 5914001, "only the time field or meta field can be part of shard key pattern"),
        ({"_id": 1}, 5914001, "only the time field or meta field can be part of shard key pattern"),
        ({"sensors": 1}, 5914001, "only the time field or meta field can be part of shard key pattern"),
        (
            {"sensor": 1, "at": "hashed"},
            ErrorCode.BadValue,
            'Invalid index spec for time-series collection: { sensor: 1, at: "hashed" }. Indexes on the time field '
            'must be ascending or descending (numbers only): at: "hashed"',
        ),
    ],
)
def test_keys_refused(key: dict[str, Any], code: int, message: str) -> None:
    with pytest.raises(CommandError) as refused:
        FIELDS.buckets_key(key)
    assert (refused.value.code, refused.value.message) == (code, message)


def test_keys_without_metadata() -> None:
    fields = TimeSeriesFields("at")
    assert fields.buckets_key({"at": 1}) == {"control.min.at": 1}
    with pytest.raises(CommandError, match="only the time field or meta field"):
        fields.buckets_key({"sensor": 1})


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ({"sensor.id": 1, "at": -1}, {"meta.id": 1, "control.max.at": -1, "control.min.at": -1}),
        ({"sensor": "hashed", "value": 1.0}, {"meta": "hashed", "control.min.value": 1.0, "control.max.value": 1.0}),
        ({"sensor.loc": "2dsphere", "spot": "2dsphere"}, {"meta.loc": "2dsphere", "data.spot": "2dsphere_bucket"}),
        ({"meta": 1}, {"control.min.meta": 1, "control.max.meta": 1}),
        ({"$natural": -1}, {"$natural": -1}),
        ({"$hint": "by_time"}, {"$hint": "by_time"}),
        ({}, {}),
    ],
)
def test_hints_for_buckets(key: dict[str, Any], expected: dict[str, Any]) -> None:
    hint = bson.decode(FIELDS.buckets_hint(bson.encode(key)))
    assert list(hint.items()) == list(expected.items())


@pytest.mark.parametrize(
    ("key", "which"),
    [
        ({"at": "text"}, 'the time field must be ascending or descending (numbers only): at: "text"'),
        ({"at": True}, "the time field must be ascending or descending (numbers only): at: true"),
        *(
            (
                {"value": way},
                "measurement fields must be ascending or descending (numbers only), or '2dsphere': "
                + f'value: "{way}"',
            )
            for way in ("2d", "hashed")
        ),
    ],
)
def test_keys_of_no_index(key: dict[str, Any], which: str) -> None:
    with pytest.raises(CommandError) as refused:
        FIELDS.buckets_index_key(key)
    assert refused.value.code == ErrorCode.BadValue
    assert refused.value.message.endswith(f". Indexes on {which}")


@pytest.mark.parametrize(
    ("granularity", "begins", "span_seconds"),
    [
        ("seconds", TIME.replace(second=0, microsecond=0), 3600),
        ("minutes", TIME.replace(minute=0, second=0, microsecond=0), 86_400),
        ("hours", TIME.replace(hour=0, minute=0, second=0, microsecond=0), 2_592_000),
    ],
)
def test_beginnings_of_buckets(granularity: str, begins: datetime, span_seconds: int) -> None:
    fields = TimeSeriesFields("at", "sensor", granularity)
    bucket = fields.bucket_of(bson.encode({"_id": 1, "v": 2, "at": TIME, "sensor": {"a": [1]}}))
    assert bson.decode(bucket) == {"control": {"min": {"at": begins}}, "meta": {"a": [1]}}
    assert fields.span_ms == 1000 * span_seconds


@pytest.mark.parametrize("milliseconds", [-1, -59_999, -60_000, -60_001, -(2**63) + 1, -(2**63)])
def test_measurements_before_1970(milliseconds: int) -> None:
    time = DatetimeMS(milliseconds)
    bucket = bson.decode(FIELDS.bucket_of(bson.encode({"at": time})), IN_MILLISECONDS)
    assert bucket == {"control": {"min": {"at": time}}}


def test_shard_keys_of_measurements() -> None:
    pattern = ShardKeyPattern.from_mapping({"meta.a": 1, "control.min.at": 1})
    bucket = FIELDS.bucket_of(bson.encode({"at": TIME, "sensor": {"a": 7}}))
    key = pattern.extract_from_document(bucket)
    assert bson.decode(key) == {"meta.a": 7, "control.min.at": TIME.replace(second=0, microsecond=0)}


@pytest.mark.parametrize("measurement", [{}, {"at": 5}, {"at": "2024-01-01"}])
def test_measurements_without_time(measurement: dict[str, Any]) -> None:
    with pytest.raises(
        CommandError, match="'at' must be present and contain a valid BSON UTC datetime value"
    ) as refused:
        FIELDS.bucket_of(bson.encode(measurement))
    assert refused.value.code == 5743702


def test_catalog_documents() -> None:
    entry = {"timeField": "at", "metaField": "sensor", "granularity": "hours", "bucketMaxSpanSeconds": 2_592_000}
    assert TimeSeriesFields.from_document(entry).to_document() == entry
    assert TimeSeriesFields.from_document({"timeField": "at"}).to_document() == {
        "timeField": "at",
        "granularity": "seconds",
    }


def test_names_and_commands() -> None:
    assert buckets_of("db.a.b") == "db.system.buckets.a.b"
    assert measurements_of("db.system.buckets.a.b") == "db.a.b"
    command = bson.encode({"insert": "a.b", "ordered": False, "$db": "db"})
    renamed = on_buckets(command)
    assert bson.decode(renamed) == {
        **{"insert": "system.buckets.a.b", "ordered": False, "$db": "db"},
        "isTimeseriesNamespace": True,
    }
    assert on_measurements(renamed) == command
