"""The other collections that a pipeline names."""

from typing import Any

import bson
import pytest

from shardwright.sharding.pipelines.pipeline import (
    involved_namespaces,
    involved_namespaces_element,
    may_involve_others,
    received_versions,
    writes,
)
from shardwright.sharding.versions import UNSHARDED, shard_version_element
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import from_elements, index


def pipeline(*stages: dict[str, Any]) -> bytes:
    return bson.encode({str(position): stage for position, stage in enumerate(stages)})


@pytest.mark.parametrize(
    ("stage", "named"),
    [
        ({"$lookup": {"from": "d", "as": "x", "localField": "a", "foreignField": "b"}}, {"test.d": False}),
        (
            {"$lookup": {"from": "d", "as": "x", "pipeline": [{"$unionWith": "e"}]}},
            {"test.d": False, "test.e": False},
        ),
        ({"$lookup": {"from": {"db": "other", "coll": "d"}, "as": "x", "pipeline": []}}, {"other.d": False}),
        ({"$lookup": {"as": "x", "pipeline": [{"$documents": []}, {"$unionWith": "e"}]}}, {"test.e": False}),
        ({"$graphLookup": {"from": "d"}}, {"test.d": False}),
        (
            {"$unionWith": {"coll": "d", "pipeline": [{"$lookup": {"from": "e"}}]}},
            {"test.d": False, "test.e": False},
        ),
        ({"$unionWith": "d"}, {"test.d": False}),
        ({"$out": "d"}, {"test.d": True}),
        ({"$out": {"db": "other", "coll": "d"}}, {"other.d": True}),
        ({"$merge": "d"}, {"test.d": True}),
        ({"$merge": {"into": "d"}}, {"test.d": True}),
        ({"$merge": {"into": {"db": "other", "coll": "d"}}}, {"other.d": True}),
        ({"$merge": {"into": {"coll": "d"}}}, {"test.d": True}),
        ({"$facet": {"one": [{"$lookup": {"from": "d", "as": "x", "pipeline": []}}]}}, {"test.d": False}),
        ({"$match": {"from": "d", "": "e"}}, {}),
        ({"$lookup": 3}, {}),
        ({"$merge": {"into": 3}}, {}),
        ({"$out": {"db": "other"}}, {}),
    ],
)
def test_collections_that_stages_name(stage: dict[str, Any], named: dict[str, bool]) -> None:
    raw = pipeline({"$match": {}}, stage)
    assert involved_namespaces(raw, "test") == named
    assert writes(raw) is (next(iter(stage)) in ("$out", "$merge"))
    assert may_involve_others(raw) or not named


def test_what_is_read_and_written_is_written() -> None:
    raw = pipeline({"$unionWith": "d"}, {"$merge": "d"}, {"$lookup": {"from": "d"}})
    assert involved_namespaces(raw, "test") == {"test.d": True}


def test_pipelines_nested_too_deep_are_refused() -> None:
    raw = pipeline()
    for _ in range(300):
        raw = pipeline({"$lookup": {"pipeline": bson.raw_bson.RawBSONDocument(raw)}}).replace(
            b"\x03pipeline\0", b"\x04pipeline\0"
        )
    with pytest.raises(CommandError, match="nested"):
        involved_namespaces(raw, "test")


def test_the_field_tells_the_versions_by_namespace() -> None:
    version = shard_version_element(UNSHARDED)
    body = from_elements(involved_namespaces_element({"a.b": version, "a.c": b""}))
    received = received_versions(body, index(body)[b"involvedNamespaces"])
    assert list(received) == ["a.b", "a.c"]
    _, _, start, end = received["a.b"][b"shardVersion"]
    assert body[start:end] == UNSHARDED.raw
    assert list(received["a.c"]) == [b"ns"]
    assert involved_namespaces_element({}) == b""


@pytest.mark.parametrize("value", [3, [3], [{}], [{"ns": 3}]])
def test_a_malformed_field_is_refused(value: object) -> None:
    body = bson.encode({"involvedNamespaces": value})
    with pytest.raises(CommandError):
        received_versions(body, index(body)[b"involvedNamespaces"])
