"""Batches of cursors in replies."""

from typing import Any

import bson
import pytest
from bson.int64 import Int64

from shardwright.wire.cursor_batch import DecodedBatch, RawBatch
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, RemoteProtocolError
from shardwright.wire.message import reply_document

Parts = dict[str, Any]


def cursor_reply(documents: list[Parts], cursor_id: int = 0, name: str = "nextBatch") -> Parts:
    return {"cursor": {name: documents, "id": Int64(cursor_id), "ns": "db.a.b"}, "ok": 1.0}


def raw(reply: Parts) -> RawBatch:
    return RawBatch(reply_document(1, reply))


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 100, 101])
@pytest.mark.parametrize("expected", [0, 1, 10, 11, 100])
def test_the_documents_of_a_batch_are_counted_right_whatever_was_expected(count: int, expected: int) -> None:
    # The fields look like the keys of the array.
    documents: list[Parts] = [{"0": {}, "9": {"10": 1}, "10": {}, "99": {"p": [{}] * 12}} for _ in range(count)]
    assert raw(cursor_reply(documents)).count(expected) == count


@pytest.mark.parametrize("name", ["firstBatch", "nextBatch"])
def test_a_raw_batch_is_a_slice_of_the_reply(name: str) -> None:
    found = raw(cursor_reply([{"a": 1}, {"b": 2}], 5, name))
    assert found.documents() == [bson.encode({"a": 1}), bson.encode({"b": 2})]
    assert found.array == bson.encode({"0": {"a": 1}, "1": {"b": 2}})
    assert (found.cursor_id, found.namespace, found.is_empty) == (5, "db.a.b", False)
    assert found.frame[found.fields[b"ok"][2] : found.fields[b"ok"][3]] == bson.encode({"": 1.0})[6:-1]
    assert raw(cursor_reply([])).is_empty


@pytest.mark.parametrize("name", ["firstBatch", "nextBatch"])
def test_a_decoded_batch(name: str) -> None:
    found = DecodedBatch(cursor_reply([{"a": 1}], 5, name))
    assert found.documents() == [{"a": 1}]
    assert (found.cursor_id, found.namespace) == (5, "db.a.b")


def test_an_error_is_raised() -> None:
    with pytest.raises(CommandError) as failure:
        raw({"ok": 0.0, "code": 43, "errmsg": "gone"})
    assert failure.value.code == ErrorCode.CursorNotFound


@pytest.mark.parametrize(
    "cursor",
    [
        5,
        {"firstBatch": [], "id": Int64(0)},
        {"firstBatch": [], "id": 0, "ns": "db.things"},
        {"firstBatch": {}, "id": Int64(0), "ns": "db.things"},
        {"id": Int64(0), "ns": "db.things"},
    ],
)
def test_what_is_no_batch_is_refused(cursor: object) -> None:
    with pytest.raises(RemoteProtocolError):
        raw({"cursor": cursor, "ok": 1.0})


def test_replies_without_a_cursor_are_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        RawBatch(reply_document(1, {"ok": 1.0})[:12] + bytes(30))
    with pytest.raises(RemoteProtocolError):
        DecodedBatch({"ok": 1.0})
