"""The condition for the begin of the critical section."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import pytest

from shardwright.shardd.migration.donor.donor_state import BacklogLimit

if TYPE_CHECKING:
    from shardwright.shardd.migration.donor.clone_source import CloneSource


@dataclass
class Source:
    """The part of a source that matters here."""

    queued_ids: int
    documents_cloned: int = 100_000
    is_clone_exhausted: bool = True


def is_met(limit: BacklogLimit, source: Source) -> bool:
    return limit.is_met(cast("CloneSource", source))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which changes only if the test changes it."""
    now = [1000.0]
    monkeypatch.setattr("shardwright.shardd.migration.donor.donor_state.time.monotonic", lambda: now[0])
    return now


def test_not_before_the_end_of_the_clone(clock: list[float]) -> None:
    assert not is_met(BacklogLimit(), Source(0, is_clone_exhausted=False))


def test_a_few_documents_may_be_left(clock: list[float]) -> None:
    assert is_met(BacklogLimit(), Source(64))
    assert not is_met(BacklogLimit(), Source(65))


def test_more_may_be_left_after_a_long_time(clock: list[float]) -> None:
    limit = BacklogLimit()
    clock[0] += 10
    assert is_met(limit, Source(256))
    assert not is_met(limit, Source(257))


def test_never_more_than_a_tenth_of_the_clone(clock: list[float]) -> None:
    limit = BacklogLimit()
    clock[0] += 100_000
    assert is_met(limit, Source(10_000))
    assert not is_met(limit, Source(10_001))
    assert is_met(limit, Source(64, documents_cloned=0))
