"""Repeating what must be done."""

import pytest
import trio
from trio.testing import MockClock

from shardwright.daemon.backoff import Backoff, until_done
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError

FAILURES = (
    BackendError("host:1", "connection broke", sent=True),
    CommandError(ErrorCode.NotWritablePrimary, "not primary"),
)


class Step:
    """A step that fails with some errors first.

    Attributes:
        failures: the errors that are left.
        reported: the reported errors, each with the pause that follows.
    """

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.reported: list[tuple[Exception, float]] = []

    async def run(self) -> str:
        await trio.lowlevel.checkpoint()
        if self.failures:
            raise self.failures.pop(0)
        return "done"

    def report(self, error: Exception, seconds: float) -> None:
        self.reported.append((error, seconds))

    async def repeated(self) -> tuple[str, float]:
        """The result, and how long that took."""
        began, backoff = trio.current_time(), Backoff(1, 8, random_fraction=lambda: 1)
        return await until_done(self.run, backoff, self.report), trio.current_time() - began


def test_a_step_is_repeated_after_errors_of_servers() -> None:
    step = Step(*FAILURES)
    result, seconds = trio.run(step.repeated, clock=MockClock(autojump_threshold=0))
    assert result == "done"
    assert seconds == pytest.approx(3)
    assert step.reported == [(FAILURES[0], 1), (FAILURES[1], 2)]


def test_a_step_that_succeeds_is_run_once() -> None:
    step = Step()
    assert trio.run(step.repeated)[0] == "done"
    assert step.reported == []


def test_other_errors_end_it() -> None:
    step = Step(KeyError("participants"))
    with pytest.raises(KeyError):
        trio.run(step.repeated)
