"""Options are compared between owners, and with the catalog."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from shardwright.sharding.catalog.consistency import option_differences
from shardwright.sharding.catalog.documents import CollectionEntry
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.time_series import TimeSeriesFields

FRENCH = {"locale": "fr", "strength": 3}
SERIES = {"timeField": "t", "metaField": "m", "granularity": "seconds", "bucketMaxSpanSeconds": 3600}
AS_ASKED = {"timeField": "t", "metaField": "m", "granularity": "seconds"}


def entry(collation: Mapping[str, Any] | None = None, series: Mapping[str, Any] | None = None) -> CollectionEntry:
    return CollectionEntry(
        Namespace("d", "c"),
        UUID(int=7),
        ObjectId(),
        Timestamp(1, 1),
        datetime.now(UTC),
        ShardKeyPattern.from_mapping({"x": 1}),
        default_collation=collation,
        time_series=None if series is None else TimeSeriesFields.from_document(series),
    )


@pytest.mark.parametrize(
    ("of_catalog", "of_shards"),
    [
        (entry(), {}),
        (entry(), {"a": {}, "b": {"validationLevel": "strict", "validationAction": "error", "validator": {}}}),
        (entry(FRENCH), {"a": {"collation": FRENCH}, "b": {"collation": FRENCH}}),
        (entry(series=SERIES), {"a": {"timeseries": SERIES, "clusteredIndex": True}}),
        (entry(series=AS_ASKED), {"a": {"timeseries": SERIES}, "b": {"timeseries": SERIES}}),
    ],
)
def test_equal_options(of_catalog: CollectionEntry, of_shards: Mapping[str, Mapping[str, Any]]) -> None:
    assert option_differences(of_catalog, of_shards) == []


@pytest.mark.parametrize(
    ("of_catalog", "of_shards", "told"),
    [
        (entry(), {"a": {}, "b": {"capped": True}, "c": {}}, [({}, ["a", "c"]), ({"capped": True}, ["b"])]),
        (entry(FRENCH), {"a": {}, "b": {}}, [({}, ["a", "b"]), ({"collation": FRENCH}, ["config"])]),
        (entry(), {"a": {"timeseries": SERIES}}, [({"timeseries": SERIES}, ["a"]), ({}, ["config"])]),
        (entry(series=SERIES), {"a": {}}, [({}, ["a"]), ({"timeseries": SERIES}, ["config"])]),
        (
            entry(series=SERIES),
            {"a": {"timeseries": {**SERIES, "granularity": "hours"}}},
            [({"timeseries": {**SERIES, "granularity": "hours"}}, ["a"]), ({"timeseries": SERIES}, ["config"])],
        ),
    ],
)
def test_different_options(
    of_catalog: CollectionEntry,
    of_shards: Mapping[str, Mapping[str, Any]],
    told: list[tuple[Mapping[str, Any], list[str]]],
) -> None:
    (only,) = option_differences(of_catalog, of_shards)
    assert only["type"] == "CollectionOptionsMismatch"
    assert [(each["options"], each["shards"]) for each in only["details"]["options"]] == told
