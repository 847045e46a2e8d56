"""Reads of a time-series collection, translated to its buckets."""

from typing import Any

import bson
import pytest

from shardwright.router.reads.views import ResolvedView
from tests.router.reads.requests import request

OPTIONS: dict[str, Any] = {"timeField": "t", "metaField": "m"}
UNPACK: dict[str, Any] = {"$_internalUnpackBucket": {**OPTIONS, "bucketMaxSpanSeconds": 3600}}
MATCH: dict[str, Any] = {"$match": {"a": 1}}


def near(key: object, **others: object) -> dict[str, Any]:
    """A search by distance."""
    return {"$geoNear": {"near": [0, 0], "key": key, "distanceField": "d", **others}}


def expanded(command: dict[str, Any], *stages: dict[str, Any]) -> dict[str, Any]:
    """The aggregation on buckets for a read of a view with some stages."""
    view = {"ns": "db.system.buckets.c", "pipeline": [UNPACK, *stages], "timeseriesOptions": OPTIONS}
    read: dict[str, Any] = ResolvedView.of(bson.encode({"resolvedView": view})).expand(request(command)).document
    return read


NOT_MOVED: list[dict[str, Any]] = [
    *(near(key) for key in ("a", "mm", 1)),
    near("m", query={"m": 1}),
    {"$geoNear": 5},
    {"$geoNear": {}},
]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([near("m"), MATCH], [near("meta"), UNPACK, MATCH]),
        ([near("m.a.b", query={})], [near("meta.a.b", query={}), UNPACK]),
        *(([stage, MATCH], [UNPACK, stage, MATCH]) for stage in NOT_MOVED),
        ([MATCH, near("m")], [UNPACK, MATCH, near("m")]),
        ([{"$indexStats": {}}, MATCH], [{"$indexStats": {}}, {"$_internalConvertBucketIndexStats": OPTIONS}, MATCH]),
        ([], [UNPACK]),
    ],
    ids=str,
)
def test_stages_in_front_of_buckets(given: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    command = {"aggregate": "c", "pipeline": given, "cursor": {}}
    assert expanded(command)["pipeline"] == expected
    assert expanded({**command, "pipeline": given[1:]}, *given[:1])["pipeline"] == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"m.a": 1, "t": -1}, {"meta.a": 1, "control.max.t": -1, "control.min.t": -1}),
        ({"p": "2dsphere"}, {"data.p": "2dsphere_bucket"}),
        ({"data.p": "2dsphere_bucket"}, {"data.p": "2dsphere_bucket"}),
        ({"meta.a": 1}, {"control.min.meta.a": 1, "control.max.meta.a": 1}),
        ({"$natural": -1}, {"$natural": -1}),
        ({}, {}),
        ("m_1", "m_1"),
        (5, 5),
    ],
    ids=str,
)
def test_hints(given: object, expected: object) -> None:
    for command in (
        {"find": "c", "hint": given},
        {"count": "c", "hint": given},
        {"aggregate": "c", "pipeline": [], "cursor": {}, "hint": given},
    ):
        assert expanded(command, MATCH)["hint"] == expected
