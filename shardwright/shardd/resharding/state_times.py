"""How long a donor or a recipient has been in its states, in this term."""

import trio
from bson.int64 import Int64


class StateTimes:
    """The times at which states were entered.

    Args:
        state: the first one.

    Attributes:
        began: when that was entered, by trio's clock.
        present: when the present one was.
    """

    def __init__(self, state: str) -> None:
        self.began = self.present = trio.current_time()
        self._state = state
        self._seconds: dict[str, float] = {}

    @property
    def elapsed(self) -> float:
        """Seconds in all states together."""
        return trio.current_time() - self.began

    def enter(self, state: str) -> None:
        """Enter a state."""
        now = trio.current_time()
        self._seconds[self._state] = self._seconds.get(self._state, 0.0) + now - self.present
        self._state, self.present = state, now

    def seconds_in(self, state: str) -> Int64:
        """Whole seconds in a state so far."""
        seconds = self._seconds.get(state, 0.0)
        if state == self._state:
            seconds += trio.current_time() - self.present
        return Int64(seconds)
