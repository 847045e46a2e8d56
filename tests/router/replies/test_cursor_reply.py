"""Cursor replies received from shards, and those made by the router."""

from typing import Any

import bson
import pytest
from bson.timestamp import Timestamp

from shardwright.router.replies.cursor_reply import (
    NEXT_BATCH,
    CursorReply,
    cursor_element,
    empty_cursor,
    is_whole_result,
)
from shardwright.wire.errors import RemoteProtocolError
from shardwright.wire.frames import Header
from shardwright.wire.message import OpMsg
from shardwright.wire.rawbson import from_elements
from tests.router.reads.requests import cursor_reply, shard_reply

DOCUMENTS: list[dict[str, Any]] = [{"_id": 1}, {"_id": 2, "x": "y" * 300}]


def body(frame: bytes) -> dict[str, Any]:
    return bson.decode(OpMsg(frame).body)


@pytest.mark.parametrize("batch", ["firstBatch", "nextBatch"])
def test_the_parts_of_a_reply(batch: str) -> None:
    found = CursorReply.of(cursor_reply(DOCUMENTS, 77, batch=batch))
    assert (found.cursor_id, found.namespace, found.is_empty, found.is_partial) == (77, "test.c", False, False)
    assert [bson.decode(document) for document in found.documents()] == DOCUMENTS


def test_only_the_cursor_id_changes_on_the_way() -> None:
    reply = cursor_reply(DOCUMENTS, 77)
    passed = CursorReply.of(reply).with_cursor_id(-5)
    assert len(passed) == len(reply.frame)
    assert sum(a != b for a, b in zip(passed, reply.frame, strict=True)) <= 8
    expected = body(reply.frame)
    expected["cursor"]["id"] = -5
    assert body(passed) == expected


def test_a_reply_can_answer_another_request() -> None:
    passed = CursorReply.of(cursor_reply(DOCUMENTS, 77)).with_cursor_id(0, 4711)
    assert Header(passed).response_to == 4711
    assert body(passed)["cursor"]["id"] == 0


@pytest.mark.parametrize("is_first", [True, False])
def test_fields_between_servers_are_hidden(is_first: bool) -> None:
    cursor = {"cursor": {"firstBatch": DOCUMENTS, "id": bson.Int64(9), "ns": "test.c"}}
    hidden = {"$configTime": Timestamp(1, 1), "lastCommittedOpTime": Timestamp(1, 1)}
    reply = shard_reply({**cursor, **hidden, "ok": 1.0} if is_first else {**hidden, **cursor, "ok": 1.0})
    found = CursorReply.of(reply)
    assert body(found.with_cursor_id(10)) == {"cursor": {**cursor["cursor"], "id": 10}, "ok": 1.0}


@pytest.mark.parametrize(
    "document",
    [
        {"ok": 1.0},
        {"cursor": 3, "ok": 1.0},
        {"cursor": {"id": bson.Int64(1), "ns": "a.b"}, "ok": 1.0},
        {"cursor": {"firstBatch": [], "id": 1, "ns": "a.b"}, "ok": 1.0},
        {"cursor": {"firstBatch": {}, "id": bson.Int64(1), "ns": "a.b"}, "ok": 1.0},
    ],
)
def test_a_reply_without_a_proper_cursor_breaks_the_protocol(document: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError):
        CursorReply.of(shard_reply(document))


def test_a_batch_of_something_else_breaks_the_protocol() -> None:
    reply = shard_reply({"cursor": {"firstBatch": [1], "id": bson.Int64(0), "ns": "a.b"}, "ok": 1.0})
    with pytest.raises(RemoteProtocolError):
        CursorReply.of(reply).documents()


@pytest.mark.parametrize(
    ("cursor", "whole"),
    [
        ({"firstBatch": DOCUMENTS, "id": bson.Int64(0), "ns": "a.b"}, True),
        ({"firstBatch": [], "id": bson.Int64(0), "ns": "a.b"}, True),
        ({"firstBatch": DOCUMENTS, "id": bson.Int64(5), "ns": "a.b"}, False),
        ({"firstBatch": DOCUMENTS, "partialResultsReturned": True, "id": bson.Int64(0), "ns": "a.b"}, False),
        ({"id": bson.Int64(0), "ns": "a.b", "firstBatch": []}, False),
        ({"nextBatch": DOCUMENTS, "id": bson.Int64(0), "ns": "a.b"}, False),
        ({}, False),
        (3, False),
    ],
)
def test_what_plainly_holds_the_whole_result(cursor: object, whole: bool) -> None:
    assert is_whole_result(shard_reply({"cursor": cursor, "ok": 1.0})) is whole


def test_our_own_reply_has_the_fields_in_mongos_order() -> None:
    raw = [bson.encode(document) for document in DOCUMENTS]
    pieces = cursor_element(NEXT_BATCH, raw, 5, "test.c", is_partial=True, at_cluster_time=Timestamp(4, 2))
    made = bson.decode(from_elements(b"".join(pieces)))
    assert made == {
        "cursor": {
            "nextBatch": DOCUMENTS,
            "partialResultsReturned": True,
            "id": 5,
            "ns": "test.c",
            "atClusterTime": Timestamp(4, 2),
        }
    }
    assert list(made["cursor"]) == ["nextBatch", "partialResultsReturned", "id", "ns", "atClusterTime"]


def test_nothing_is_reported_in_the_order_mongodb_has_for_it() -> None:
    assert list(empty_cursor("a.b")["cursor"].items()) == [("id", 0), ("ns", "a.b"), ("firstBatch", [])]
