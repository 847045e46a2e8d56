"""Waiting for a condition with a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_PAUSE_SECONDS = 0.02


def eventually(condition: Callable[[], T | None], *, within: float = 120.0, what: str = "the condition") -> T:
    """Poll a condition until its result is true, and return the result.

    Args:
        condition: called every few milliseconds; an exception from it ends the wait.
        within: seconds; by default enough for a busy machine.
        what: for the error message.

    Raises:
        AssertionError: it did not become true in time; the message contains the last result.
    """
    deadline = time.monotonic() + within
    while True:
        answer = condition()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"{what} was not so within {within} s: {answer!r}"
        time.sleep(_PAUSE_SECONDS)
