"""The set of touched ids, and the numbers of batches."""

import pytest

from shardwright.shardd.migration.donor.clone_source import BatchNumbers
from shardwright.shardd.migration.donor.oplog_follower import TouchedIds
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

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
