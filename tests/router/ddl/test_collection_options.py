"""Whether an existing collection matches the options of a ``create``."""

from typing import Any

import pytest

from shardwright.router.ddl.merged_replies import are_options_equal

EN = {
    "locale": "en",
    "caseLevel": False,
    "caseFirst": "off",
    "strength": 3,
    "numericOrdering": False,
    "alternate": "non-ignorable",
    "maxVariable": "punct",
    "normalization": False,
    "backwards": False,
    "version": "57.1",
}


@pytest.mark.parametrize(
    ("requested", "existing"),
    [
        ({}, {}),
        ({"capped": False}, {}),
        ({"capped": True, "size": 100, "max": 5}, {"capped": True, "size": 256, "max": 5}),
        ({"capped": True, "size": 512.0}, {"capped": True, "size": 512}),
        ({"size": 100}, {}),
        ({"collation": {"locale": "en"}}, {"collation": EN}),
        ({"collation": {"strength": 3, "locale": "en"}}, {"collation": EN}),
        ({"collation": {"locale": "simple"}}, {}),
        (
            {"validator": {"a": 1}},
            {"validator": {"a": 1}, "validationLevel": "strict", "validationAction": "error"},
        ),
        ({"viewOn": "a"}, {"viewOn": "a", "pipeline": []}),
        (
            {"timeseries": {"timeField": "t"}},
            {"timeseries": {"timeField": "t", "granularity": "seconds", "bucketMaxSpanSeconds": 3600}},
        ),
        (
            {"clusteredIndex": {"key": {"_id": 1}, "unique": True}},
            {"clusteredIndex": {"v": 2, "key": {"_id": 1}, "name": "_id_", "unique": True}},
        ),
        ({"create": "c", "$db": "s", "lsid": {"id": 1}, "comment": "x", "writeConcern": {"w": 1}}, {}),
    ],
)
def test_same(requested: dict[str, Any], existing: dict[str, Any]) -> None:
    assert are_options_equal(requested, existing)


@pytest.mark.parametrize(
    ("requested", "existing"),
    [
        ({}, {"capped": True, "size": 256}),
        ({"capped": True, "size": 257}, {"capped": True, "size": 256}),
        ({"capped": True, "size": 256, "max": 1}, {"capped": True, "size": 256}),
        ({}, {"collation": EN}),
        ({"collation": {"locale": "en", "strength": 2}}, {"collation": EN}),
        ({"validator": {"a": 2}}, {"validator": {"a": 1}}),
        ({"validator": {"a": 1}, "validationAction": "warn"}, {"validator": {"a": 1}}),
        ({}, {"viewOn": "a", "pipeline": []}),
        ({"viewOn": "a", "pipeline": [{"$match": {}}]}, {"viewOn": "a", "pipeline": []}),
        ({"timeseries": {"timeField": "t"}}, {"timeseries": {"timeField": "u", "granularity": "seconds"}}),
        ({"expireAfterSeconds": 10}, {}),
    ],
)
def test_other(requested: dict[str, Any], existing: dict[str, Any]) -> None:
    assert not are_options_equal(requested, existing)
