"""The pauses between attempts."""

import random
from itertools import pairwise

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from shardwright.daemon.backoff import Backoff

FIRST = st.floats(0.001, 10)
TIMES_FIRST = st.floats(1, 1_000)
GROWTH = st.floats(1.1, 4)


@given(FIRST, TIMES_FIRST, GROWTH, st.integers(1, 40), st.randoms())
def test_each_pause_is_between_half_and_all_of_a_delay_that_grows_to_the_maximum(
    first: float, times: float, growth: float, count: int, source: random.Random
) -> None:
    backoff = Backoff(first, first * times, growth=growth, random_fraction=source.random)
    longest = [min(first * growth**number, first * times) for number in range(count)]
    for expected in longest:
        pause = backoff.next_seconds()
        assert expected / 2 <= pause * (1 + 1e-9)
        assert pause <= expected * (1 + 1e-9)


@given(FIRST, TIMES_FIRST, GROWTH, st.floats(0, 1))
def test_pauses_grow_until_the_maximum_and_stay_there(
    first: float, times: float, growth: float, fraction: float
) -> None:
    backoff = Backoff(first, first * times, growth=growth, random_fraction=lambda: fraction)
    pauses = [backoff.next_seconds() for _ in range(100)]
    assert all(earlier <= later for earlier, later in pairwise(pauses))
    assert pauses[-1] == pytest.approx(first * times * (1 + fraction) / 2)


@given(FIRST, TIMES_FIRST, st.integers(0, 20), st.floats(0, 1))
def test_a_reset_returns_to_the_first_pause(first: float, times: float, count: int, fraction: float) -> None:
    backoff = Backoff(first, first * times, random_fraction=lambda: fraction)
    pauses = [backoff.next_seconds() for _ in range(5)]
    for _ in range(count):
        backoff.next_seconds()
    backoff.reset()
    assert [backoff.next_seconds() for _ in range(5)] == pauses


def test_loops_that_fail_together_drift_apart() -> None:
    first, second = Backoff(1.0, 60.0), Backoff(1.0, 60.0)
    assert [first.next_seconds() for _ in range(5)] != [second.next_seconds() for _ in range(5)]


def test_a_pause_takes_the_expected_time() -> None:
    async def pause_thrice() -> list[float]:
        backoff = Backoff(2.0, 6.0, random_fraction=lambda: 0.5)
        times = [trio.current_time()]
        for _ in range(3):
            await backoff.pause()
            times.append(trio.current_time())
        return [later - earlier for earlier, later in pairwise(times)]

    assert trio.run(pause_thrice, clock=MockClock(autojump_threshold=0)) == pytest.approx([1.5, 3.0, 4.5])
