"""How long the steps of a migration take, on the donor as on the recipient."""

import time


class StepTimes:
    """Which steps are done, and what time each has taken.

    Args:
        count: how many steps there are.

    Attributes:
        done: the number of the last step that is done.
        millis: the milliseconds of each step that is done, named as in the changelog.
    """

    def __init__(self, count: int) -> None:
        self.done = 0
        self.millis: dict[str, int] = {}
        self._count = count
        self._last = time.monotonic()

    @property
    def text(self) -> str:
        """The last step that is done, as ``currentOp`` and the changelog name it."""
        return f"step {self.done} of {self._count}"

    def note(self, step: int) -> None:
        """A step is done; the next one begins."""
        now = time.monotonic()
        self.done = step
        self.millis[self.text] = round((now - self._last) * 1000)
        self._last = now
