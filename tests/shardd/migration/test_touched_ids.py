"""The set of touched ids, and the numbers of batches."""

import bson
import pytest
from bson.int64 import Int64

from shardwright.shardd.local_mongod.raw_cursor import RawBatch
from shardwright.shardd.migration.source.batch_numbers import BatchNumbers
from shardwright.shardd.migration.source.touched_ids import TouchedIds
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, RemoteProtocolError
from shardwright.wire.message import reply_document

MUCH = 1 << 20


def filled(count: int, bytes_max: int = MUCH) -> TouchedIds:
    touched = TouchedIds(bytes_max)
    for number in range(count):
        touched.add(b"%03d" % number, 100 + number)
    return touched


def test_ids_are_taken_in_the_order_of_their_first_write() -> None:
    touched = filled(5)
    touched.add(b"000", 200)
    assert len(touched) == 5
    assert touched.take(2, MUCH) == {b"000": 100, b"001": 101}
    touched.add(b"000", 201)
    assert touched.take(100, MUCH) == {b"002": 102, b"003": 103, b"004": 104, b"000": 201}
    assert (len(touched), touched.bytes) == (0, 0)


def test_taking_is_bounded_in_bytes_but_takes_at_least_one() -> None:
    touched = filled(5)
    assert len(touched.take(5, 7)) == 2
    assert len(touched.take(5, 1)) == 1


def test_everything_before_the_first_id_has_been_handed_out() -> None:
    touched = filled(3)
    assert touched.handed_out(500) == 99
    taken = touched.take(2, MUCH)
    assert touched.handed_out(500) == 101
    touched.take(2, MUCH)
    assert touched.handed_out(500) == 500
    touched.put_back(taken)
    assert touched.handed_out(500) == 99


def test_ids_put_back_come_first_and_keep_their_times() -> None:
    touched = filled(4)
    before = touched.bytes
    taken = touched.take(2, MUCH)
    touched.add(b"001", 300)
    touched.put_back(taken)
    assert touched.bytes == before
    assert list(touched.take(4, MUCH).items()) == [(b"000", 100), (b"001", 101), (b"002", 102), (b"003", 103)]


def test_too_much_memory() -> None:
    touched = filled(10, bytes_max=10 * 153)
    touched.add(b"000", 200)
    with pytest.raises(CommandError) as failure:
        touched.add(b"010", 200)
    assert failure.value.code == ErrorCode.ExceededMemoryLimit


def test_numbers_of_batches() -> None:
    numbers = BatchNumbers("test")
    assert not numbers.is_repeated(0)
    assert not numbers.is_repeated(0), "the first attempt may have failed"
    numbers.advance()
    assert numbers.is_repeated(0)
    assert not numbers.is_repeated(1)
    assert not numbers.is_repeated(None)
    for number in (-1, 2):
        with pytest.raises(CommandError, match=f"test batch {number} ") as failure:
            numbers.is_repeated(number)
        assert failure.value.code == ErrorCode.BadValue


def batch(documents: list[object], **cursor: object) -> RawBatch:
    return RawBatch(reply_document(1, {"cursor": {"id": 0, "nextBatch": documents, **cursor}, "ok": 1.0}))


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 100, 101])
@pytest.mark.parametrize("expected", [0, 1, 10, 11, 100])
def test_the_documents_of_a_batch_are_counted_right_whatever_was_expected(count: int, expected: int) -> None:
    # The field names look like the keys of the array.
    documents: list[object] = [{"0": {}, "9": {"10": 1}, "10": {}, "99": {"p": [{}] * 12}} for _ in range(count)]
    assert batch(documents).count(expected) == count


def test_a_batch_is_a_slice_of_the_reply() -> None:
    documents: list[object] = [{"a": 1}, {"b": 2}]
    found = batch(documents, id=Int64(5))
    assert found.documents() == [bson.encode({"a": 1}), bson.encode({"b": 2})]
    assert found.array == bson.encode({"0": {"a": 1}, "1": {"b": 2}})
    assert (found.cursor_id, found.is_empty, found.scanned) == (5, False, 0)
    assert batch([]).is_empty


def test_replies_without_a_batch() -> None:
    with pytest.raises(CommandError) as failure:
        RawBatch(reply_document(1, {"ok": 0.0, "code": 43, "errmsg": "gone"}))
    assert failure.value.code == ErrorCode.CursorNotFound
    with pytest.raises(RemoteProtocolError):
        RawBatch(reply_document(1, {"ok": 1.0})[:12] + bytes(30))
