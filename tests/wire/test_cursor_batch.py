"""Batches of cursors in replies."""

from typing import Any

import bson
import pytest
from bson.int64 import Int64

from shardwright.wire.cursor_batch import DecodedBatch, RawBatch, documents_returned, last_index
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


@pytest.mark.parametrize("count", [0, 1, 2, 9, 10, 11, 100, 101, 1_000])
@pytest.mark.parametrize("name", ["firstBatch", "nextBatch"])
def test_the_documents_of_a_reply_are_counted(count: int, name: str) -> None:
    for like in ({}, {"a": 1}, {"0": {}, "3": 3, "9": {"10": {}}, "p": [{"n": 3}] * 30}):
        documents: list[Parts] = [like] * count
        assert documents_returned(reply_document(1, cursor_reply(documents, 5, name))) == count
        unusual: Parts = {"cursor": {"id": Int64(0), "ns": "db.a.b", name: documents}, "ok": 1.0}
        assert documents_returned(reply_document(1, unusual)) == count


@pytest.mark.parametrize(
    "reply",
    [
        {"n": 3, "ok": 1.0},
        {"ok": 0.0, "code": 43, "errmsg": "gone"},
        {"cursor": {"id": Int64(0), "ns": "db.a.b"}, "ok": 1.0},
        {"cursor": {"firstBatch": {"0": {}}, "id": Int64(0)}, "ok": 1.0},
    ],
)
def test_replies_without_a_batch_have_no_documents(reply: Parts) -> None:
    assert documents_returned(reply_document(1, reply)) == 0


def test_a_malformed_batch_has_no_documents() -> None:
    frame = reply_document(1, cursor_reply([{"a": 1}, {"a": 2}], name="firstBatch"))
    for end in range(len(frame)):
        assert documents_returned(frame[:end]) in (0, 2)
    length = frame.index(b"firstBatch") + len(b"firstBatch\0")
    assert documents_returned(frame[:length] + (1 << 30).to_bytes(4, "little") + frame[length + 4 :]) in (0, 2)


@pytest.mark.parametrize("kept", [40, 1_000])
def test_the_last_index_is_found_in_the_end_of_an_array(kept: int) -> None:
    array = bson.encode({str(number): {"a": number, "b": {"3": {}}} for number in range(500)})
    assert last_index(array[-kept:], 0, kept - 1) == 499
    assert last_index(array[-20:], 0, 19) is None


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
