"""A plugin of pytest for the suite: a test that takes too long fails, rather than the whole file.

It is loaded into the pytest that runs the suite, not into the one that runs this project's tests.
"""

import signal
from collections.abc import Iterator
from types import FrameType
from typing import Final

import pytest

SECONDS_MAX: Final = 120


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Raise in the test when its time is over."""

    def give_up(number: int, frame: FrameType | None) -> None:
        pytest.fail(f"{item.name} takes longer than {SECONDS_MAX} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(SECONDS_MAX)
    try:
        return (yield)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
