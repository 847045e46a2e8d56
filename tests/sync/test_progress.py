"""Rates, bounds of memory, and the lines for terminals."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.sync.batches import BYTES_MAX, MEMORY_MAX, Limits
from shardwright.sync.checkpoint import NO_TIME
from shardwright.sync.preparing import Options
from shardwright.sync.replication import (
    ERROR_MAX,
    NOTES_MAX,
    RATE_WINDOW_SECONDS,
    Rates,
    Replication,
    State,
    copy_progress,
    progress_lines,
    verify_lines,
)
from shardwright.sync.session import Sync


def test_rates_are_of_the_last_seconds() -> None:
    rates = Rates()
    assert rates.rate("documents") == 0
    for second in range(100):
        rates.note(float(second), {"documents": second * (100 if second < 50 else 200)})
    assert rates.rate("documents") == 200
    assert rates.seconds_for("documents", 1000) == 5
    assert rates.seconds_for("documents", 0) == 0


def test_a_plan_that_begins_again_has_no_negative_rate() -> None:
    rates = Rates()
    rates.note(0.0, {"documents": 1000})
    rates.note(1.0, {"documents": 10})
    assert rates.rate("documents") == 0
    assert rates.seconds_for("documents", 5) is None
    rates.note(2.0, {"documents": 20})
    assert rates.rate("documents") == 10


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 50)), min_size=1, max_size=100))
def test_a_rate_is_never_above_the_fastest_step(steps: list[tuple[float, int]]) -> None:
    rates, now, total, fastest = Rates(), 0.0, 0, 0.0
    rates.note(now, {"n": total})
    for seconds, count in steps:
        now, total = now + seconds + 0.1, total + count
        fastest = max(fastest, count / (seconds + 0.1))
        rates.note(now, {"n": total})
    assert 0 <= rates.rate("n") <= fastest * 1.001
    assert now < RATE_WINDOW_SECONDS or rates.rate("n") <= total / RATE_WINDOW_SECONDS * 1.001


@given(st.integers(1, 16), st.integers(1, BYTES_MAX), st.integers(1, 10**9))
def test_everything_that_is_buffered_fits(workers: int, size: int, memory: int) -> None:
    fixed = 3 * (workers + 1) * size
    if memory < fixed + size:
        with pytest.raises(ValueError, match="need a limit"):
            Limits.within(memory, workers=workers, size=size)
        return
    assert fixed + Limits.within(memory, workers=workers, size=size).buffer_bytes <= memory


def test_the_defaults_fit() -> None:
    assert Limits.within(MEMORY_MAX, workers=4).buffer_bytes == 64_000_000
    with pytest.raises(ValueError, match="100 workers with"):
        Limits.within(MEMORY_MAX, workers=100)


PROGRESS: dict[str, Any] = {
    "state": "RUNNING",
    "info": "collection copy",
    "lagTimeSeconds": 3,
    "eventsApplied": 1234,
    "collectionCopy": {
        "copiedDocuments": 500,
        "estimatedTotalDocuments": 1000,
        "estimatedCopiedBytes": 5,
        "estimatedTotalBytes": 10,
    },
    "rates": {
        "documentsPerSecond": 50,
        "bytesPerSecond": 2e6,
        "eventsPerSecond": 7,
        "copySecondsRemaining": 65,
    },
    "verification": {
        "source": {"hashedDocumentCount": 0, "estimatedDocumentCount": 0},
        "rounds": 0,
        "equal": False,
        "mismatches": 2,
    },
}


def test_a_line_for_each_phase() -> None:
    assert progress_lines(PROGRESS) == [
        "RUNNING  collection copy",
        f"copy    {'█' * 16}{'░' * 16} 500 of 1,000 documents  50 documents/s  2.0 MB/s  1:05 left",
        "follow  1,234 events  7 events/s  lag 3 s",
        f"verify  {'█' * 32} 0 of 0 documents  0 rounds  2 differences",
    ]
    assert progress_lines({}) == ["IDLE"]
    assert progress_lines({**PROGRESS, "error": "source and target differ"})[0] == "RUNNING  source and target differ"
    alone = {"comparedDocuments": 1, "estimatedDocuments": 2, "mismatches": 0, "collection": "a.b"}
    assert verify_lines(alone) == [f"verify  {'█' * 16}{'░' * 16} 1 of 2 documents  0 differences  a.b"]


def test_more_than_was_estimated_is_copied() -> None:
    ranges = [{"bytes": 10, "documents": 2, "estimated_bytes": 5, "estimated_documents": 1}]
    assert copy_progress([*ranges, *ranges])["estimatedTotalBytes"] == 20


def test_the_progress_has_some_notes_and_the_number_of_the_others() -> None:
    """It is stored in one document. Notes about new collections come first: no preflight has shown them."""
    sync: Any = Sync(Replication("mongodb://a", "mongodb://b"), Options())
    sync.notes = tuple(f"the zones of db.{each} are not carried" for each in range(NOTES_MAX))
    assert sync.progress()["notes"] == [*sync.notes]
    sync._parts = SimpleNamespace(
        catalog=SimpleNamespace(refused={"db.new": "is capped"}),
        copier=SimpleNamespace(ranges=[]),
        follower=SimpleNamespace(applied=NO_TIME, events=0, consistent=None),
        verifier=SimpleNamespace(progress=lambda _: {}),
        writer=SimpleNamespace(counters={}),
    )
    assert sync.progress()["notes"] == ["db.new is capped", *sync.notes[:-1], "and 1 more notes"]


def test_the_progress_has_the_beginning_of_an_error() -> None:
    """Errors of a driver may repeat whole documents."""
    sync = Sync(Replication("mongodb://a", "mongodb://b"), Options())
    sync.state = State.COMMITTING
    sync._fall_back(ValueError("x" * ERROR_MAX))
    shown = sync.progress()["error"]
    assert (len(shown), shown[-1]) == (ERROR_MAX + 1, "…")
    sync.error = "y" * ERROR_MAX
    assert sync.progress()["error"] == sync.error
