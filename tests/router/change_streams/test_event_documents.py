"""Completing the ``documentKey`` of events by the shard key, from the available parts of the document."""

from typing import Any

import bson
import pytest

from shardwright.router.change_streams.event_documents import lacks_shard_key, with_shard_key
from shardwright.sharding.shard_key import ShardKeyPattern

NS = {"db": "d", "coll": "a.b"}

Pairs = dict[str, Any]


def completed(pattern: Pairs, event: Pairs, pre_image: Pairs | None = None) -> Pairs:
    raw = bson.encode({"ns": NS, "documentKey": {"_id": 1}, **event})
    before = None if pre_image is None else bson.encode(pre_image)
    found: Pairs = bson.decode(with_shard_key(raw, ShardKeyPattern.from_mapping(pattern), before))
    assert found["ns"] == NS
    return found


@pytest.mark.parametrize(
    ("pattern", "event", "key"),
    [
        ({"x": 1}, {"fullDocument": {"_id": 1, "x": 2}}, {"x": 2, "_id": 1}),
        ({"x": "hashed"}, {"fullDocument": {"_id": 1, "x": 2}}, {"x": 2, "_id": 1}),
        ({"x.y": 1, "z": 1}, {"fullDocument": {"_id": 1, "x": {"y": 2}}}, {"x.y": 2, "_id": 1}),
        ({"_id": 1}, {"fullDocument": {"_id": 1, "x": 2}}, {"_id": 1}),
        ({"x": 1, "_id": 1}, {"fullDocument": {"_id": 1, "x": 2}}, {"x": 2, "_id": 1}),
        ({"x": 1}, {"fullDocumentBeforeChange": {"_id": 1, "x": 2}}, {"x": 2, "_id": 1}),
        ({"x": 1}, {"fullDocument": None, "fullDocumentBeforeChange": {"_id": 1, "x": 2}}, {"x": 2, "_id": 1}),
        ({"x": 1}, {"documentKey": {"x": 3, "_id": 1}, "fullDocument": {"_id": 1, "x": 2}}, {"x": 3, "_id": 1}),
        ({"x": 1}, {"fullDocument": {"_id": 1, "x": [2]}}, {"_id": 1}),
        ({"x": 1}, {}, {"_id": 1}),
    ],
)
def test_a_document_key_is_completed(pattern: Pairs, event: Pairs, key: Pairs) -> None:
    assert list(completed(pattern, event)["documentKey"].items()) == list(key.items())


def test_an_event_without_a_document_key_stays() -> None:
    event = bson.encode({"operationType": "drop", "ns": NS})
    assert with_shard_key(event, ShardKeyPattern.from_mapping({"x": 1})) == event


def described(updated: Pairs, *removed: str) -> Pairs:
    return {"updateDescription": {"updatedFields": updated, "removedFields": list(removed), "truncatedArrays": []}}


@pytest.mark.parametrize(
    ("pattern", "update", "key"),
    [
        ({"x": 1}, described({"y": 3}), {"x": {"y": 2, "z": 4}, "_id": 1}),
        ({"x.y": 1}, described({"y": 3}), {"x.y": 2, "_id": 1}),
        ({"x.y": 1}, described({"x.y": 3}), {"x.y": 3, "_id": 1}),
        ({"x.y": 1}, described({"x": {"y": 3}}), {"x.y": 3, "_id": 1}),
        ({"x.y": 1, "x.z": 1}, described({"x": {"z": 3}}), {"x.z": 3, "_id": 1}),
        ({"x.y": 1}, described({"x": 3}), {"_id": 1}),
        ({"x.y": 1, "x.z": 1}, described({}, "x.y"), {"x.z": 4, "_id": 1}),
        ({"x.y": 1}, described({}, "x"), {"_id": 1}),
        ({"x": 1}, described({"x.y": 3}), {"_id": 1}),
        ({"x": 1}, described({}, "x.y"), {"_id": 1}),
        ({"x": 1}, described({"xy": 3}, "x_"), {"x": {"y": 2, "z": 4}, "_id": 1}),
    ],
)
def test_the_key_after_an_update_results_from_the_pre_image(pattern: Pairs, update: Pairs, key: Pairs) -> None:
    event = completed(pattern, update, {"_id": 1, "x": {"y": 2, "z": 4}})
    assert list(event["documentKey"].items()) == list(key.items())
    assert event.keys() == {"ns", "documentKey", "updateDescription"}


@pytest.mark.parametrize(
    ("event", "lacks"),
    [
        ({"documentKey": {"_id": 1}}, True),
        ({"documentKey": {"_id": 1}, "fullDocument": None}, True),
        ({"documentKey": {"_id": 1}, "fullDocument": {}}, False),
        ({"documentKey": {"_id": 1}, "fullDocumentBeforeChange": {}}, False),
        ({"documentKey": {"x": 2, "_id": 1}}, False),
        ({"documentKey": 5}, False),
        ({"operationType": "drop"}, False),
    ],
)
def test_which_events_lack_the_shard_key(event: Pairs, lacks: bool) -> None:
    assert lacks_shard_key(bson.encode(event), ShardKeyPattern.from_mapping({"x": 1})) is lacks
