"""Samples add up to the written bytes, and on average to the bytes written to each chunk."""

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from shardwright.shardd.splitting.auto_splitter import ByteSampler


def write(sampler: ByteSampler, size: int) -> list[tuple[float, int]]:
    sampler.total += size
    return list(sampler.samples(size)) if sampler.total > sampler.next else []


@given(st.lists(st.integers(1, 5000), max_size=200), st.integers(1, 3000), st.integers(0, 1000))
def test_samples_are_never_further_than_a_window_from_the_total(sizes: list[int], window: int, seed: int) -> None:
    sampler, counted, written = ByteSampler(window, Random(seed)), 0, 0
    for size in sizes:
        written += size
        found = write(sampler, size)
        assert all(0 <= position < 1 for position, _ in found)
        counted += sum(weight for _, weight in found)
        assert abs(written - counted) <= window


@given(st.lists(st.tuples(st.integers(1, 500), st.integers(1, 400)), min_size=1, max_size=100), st.integers(0, 1000))
def test_windows_may_change_their_length(writes: list[tuple[int, int]], seed: int) -> None:
    sampler, counted, written = ByteSampler(100, Random(seed)), 0, 0
    for size, window in writes:
        sampler.window_bytes = window
        written += size
        counted += sum(weight for _, weight in write(sampler, size))
        assert abs(written - counted) <= 400


def test_writers_that_take_turns_are_told_apart() -> None:
    """The writes have the period of the windows, so that samples at fixed distances would hit one writer only."""
    sampler, counted = ByteSampler(1000, Random(7)), Counter[int]()
    for number in range(4000):
        for _, weight in write(sampler, 500):
            counted[number % 2] += weight
    assert sum(counted.values()) == 2_000_000
    assert all(abs(share - 1_000_000) < 100_000 for share in counted.values())
