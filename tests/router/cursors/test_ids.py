"""Cursor ids."""

from hypothesis import given
from hypothesis import strategies as st

from shardwright.router.cursors.open_cursor import WORKERS_MAX, new_cursor_id, worker_of


@given(worker=st.integers(0, WORKERS_MAX - 1), bits=st.integers(0, (1 << 64) - 1))
def test_an_id_is_a_positive_int64_that_tells_its_worker(worker: int, bits: int) -> None:
    cursor_id = new_cursor_id(worker, lambda count: bits & ((1 << count) - 1))
    assert 0 < cursor_id < 1 << 63
    assert worker_of(cursor_id) == worker


def test_an_id_is_never_that_of_an_exhausted_cursor() -> None:
    assert new_cursor_id(0, lambda _: 0) != 0


def test_a_number_that_is_no_id_tells_no_worker() -> None:
    assert worker_of(0) is None
    assert worker_of(-5) is None
