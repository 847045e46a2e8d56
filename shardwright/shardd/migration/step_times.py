"""Durations of the steps of a migration, on donor and recipient."""

import time
from enum import IntEnum


class StepTimes:
    """The finished steps and their durations.

    Args:
        steps: the steps in order, numbered from 1.

    Attributes:
        done: the number of the last finished step; 0 at first.
        millis: milliseconds taken by each finished step, by its name in the changelog.
    """

    def __init__(self, steps: type[IntEnum]) -> None:
        self.done = 0
        self.millis: dict[str, int] = {}
        self._count = len(steps)
        self._last = time.monotonic()

    @property
    def text(self) -> str:
        """The last finished step, as ``currentOp`` and the changelog name it."""
        return f"step {self.done} of {self._count}"

    def note(self, step: IntEnum) -> None:
        """Record that a step is done and the next one begins."""
        now = time.monotonic()
        self.done = step.value
        self.millis[self.text] = round((now - self._last) * 1000)
        self._last = now
