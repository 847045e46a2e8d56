"""Estimates of what an action moves."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.console.dry_runs import DryRun, bring_to, rate_of, spread, taken_for

START = datetime(2026, 1, 1, tzinfo=UTC)
AMOUNTS = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 30), min_size=1)


@given(st.integers(0, 60), AMOUNTS)
def test_chunks_are_spread_evenly(chunks: int, amounts: dict[str, int]) -> None:
    received = spread(chunks, amounts)
    assert received.total() == chunks
    after = Counter(amounts) + received
    assert all(after[each] <= min(after[other] for other in amounts) + 1 for each in received)


@given(AMOUNTS)
def test_an_empty_shard_takes_until_all_have_the_same(amounts: dict[str, int]) -> None:
    taken = taken_for(amounts)
    after = [amounts[each] - taken[each] for each in amounts]
    assert min(after) >= 0
    assert max(after) <= taken.total() + 1
    assert all(after >= taken.total() for each in taken for after in [amounts[each] - taken[each]])


def test_time_does_not_depend_on_the_number_of_chunks() -> None:
    assert spread(10**9, {"a": 10**9, "b": 0}) == {"b": 10**9}
    assert spread(10**9 + 2, {"a": 0, "b": 10**9, "c": 1}) == {"a": 500_000_002, "c": 500_000_000}
    assert taken_for({"a": 3 * 10**9, "b": 5}) == {"a": 1_500_000_000}


def test_nothing_is_taken_from_nothing() -> None:
    assert taken_for({}) == {}


def test_a_shard_takes_less_the_more_it_has() -> None:
    assert taken_for({"a": 8}) == {"a": 4}
    assert taken_for({"a": 8}, 4) == {"a": 2}
    assert taken_for({"a": 8}, 9) == {}


def test_chunks_are_brought_to_the_shards_of_their_zone() -> None:
    found = DryRun({})
    assert bring_to(found, "d.c", {"a": 3, "b": 2}, ["b", "e"]) in ({"b": 2, "e": 3}, {"b": 3, "e": 2})
    assert {origin for _, origin, _ in found.moves} == {"a"}
    assert found.moves.total() == 3
    nowhere = DryRun({})
    assert bring_to(nowhere, "d.c", {"a": 3}, []) == {}
    assert not nowhere.moves


def event(what: str, seconds: float, low: int, transferred: int = 0) -> dict[str, Any]:
    counts = {"counts": {"clonedBytes": transferred}} if transferred else {}
    time = START + timedelta(seconds=seconds)
    return {"what": f"moveChunk.{what}", "ns": "d.c", "time": time, "details": {"min": {"a": low}, **counts}}


def test_the_rate_is_of_whole_moves() -> None:
    events = [
        event("commit", 0, 9, 1_000),
        event("start", 1, 1),
        event("start", 2, 2),
        event("commit", 3, 1, 600),
        event("start", 3, 2),
        event("commit", 5, 2, 200),
    ]
    assert rate_of(events) == pytest.approx(800 / 4)
    assert rate_of([]) is None
    assert rate_of(events[:2]) is None


def test_the_busiest_shard_determines_the_time() -> None:
    moves = Counter({("d.c", "a", "b"): 2, ("d.c", "a", "e"): 1})
    found = DryRun({("d.c", "a"): 100.0}, moves).document(50.0, [])
    assert (found["chunks"], found["bytes"], found["seconds"]) == (3, 300, 6.0)
    copied = DryRun({("d.c", "a"): 100.0}, moves, is_copy=True).document(50.0, [])
    assert copied["seconds"] == 4.0


def test_unknown_sizes_and_rates_give_no_time() -> None:
    moves = Counter({("d.c", "a", "b"): 2})
    without_sizes, without_rate = DryRun({}, moves), DryRun({("d.c", "a"): 1.0}, moves)
    assert (without_sizes.document(50.0, [])["bytes"], without_sizes.document(50.0, [])["seconds"]) == (None, None)
    assert (without_rate.document(None, [])["bytes"], without_rate.document(None, [])["seconds"]) == (2, None)
