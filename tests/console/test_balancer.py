"""Past moves with the pauses of writes, and the time left of a move in progress."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shardwright.console.balancer import seconds_left, with_pauses

START = datetime(2026, 1, 1, tzinfo=UTC)


def event(what: str, low: int = 0, **details: object) -> dict[str, Any]:
    return {"what": what, "ns": "d.c", "time": START, "details": {"min": {"a": low}, **details}}


def test_a_move_has_the_pause_of_its_own_critical_section() -> None:
    newest_first = [
        event("moveChunk.from", 1, **{"step 4 of 6": 900, "step 5 of 6": 30, "step 6 of 6": 4}),
        event("moveChunk.from", 0, **{"step 4 of 6": 900, "errmsg": "no"}),
        event("moveChunk.error", 0),
        event("moveChunk.commit", 1),
        event("split", 1),
        event("moveChunk.start", 1),
        event("moveChunk.commit", 1),
    ]
    assert [(each["what"], pause) for each, pause in with_pauses(newest_first)] == [
        ("moveChunk.error", None),
        ("moveChunk.commit", 34),
        ("split", None),
        ("moveChunk.commit", None),
    ]


@pytest.mark.parametrize(
    ("share", "left"), [(0.25, 30.0), (0.5, 10.0), (1.0, 0.0), (0.0, None), (0.001, None), (None, None)]
)
def test_the_time_left_follows_from_the_share(share: float | None, left: float | None) -> None:
    assert seconds_left(START, share, START + timedelta(seconds=10)) == left
    assert seconds_left(None, share, START) is None
