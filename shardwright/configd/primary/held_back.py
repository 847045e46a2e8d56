"""Chunks whose move has failed: they are tried again after a pause that grows with every failure."""

from collections.abc import Callable
from typing import Final, NamedTuple

import trio

FIRST_PAUSE_SECONDS: Final = 20.0
PAUSE_SECONDS_MAX: Final = 3600.0
CHUNKS_MAX: Final = 1000
"""As many chunks of each collection are kept in mind; the ones that failed first are forgotten first."""


class _Failure(NamedTuple):
    pause_seconds: float
    until: float
    error: str


class HeldBack:
    """The chunks of all collections whose last move has failed, in this term.

    Args:
        clock: returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = trio.current_time) -> None:
        self._clock = clock
        self._failures: dict[str, dict[bytes, _Failure]] = {}

    def failed(self, namespace: str, lower_bound: bytes, error: str) -> None:
        """The move of a chunk, or of its beginning, has failed."""
        failures = self._failures.setdefault(namespace, {})
        earlier = failures.pop(lower_bound, None)
        pause = FIRST_PAUSE_SECONDS if earlier is None else min(2 * earlier.pause_seconds, PAUSE_SECONDS_MAX)
        failures[lower_bound] = _Failure(pause, self._clock() + pause, error)
        if len(failures) > CHUNKS_MAX:
            del failures[next(iter(failures))]

    def moved(self, namespace: str, lower_bound: bytes) -> None:
        """The move of a chunk has succeeded."""
        failures = self._failures.get(namespace, {})
        failures.pop(lower_bound, None)
        if not failures:
            self._failures.pop(namespace, None)

    def lower_bounds(self, namespace: str) -> list[bytes]:
        """The chunks of a collection that are not to be moved now."""
        now = self._clock()
        return [bound for bound, failure in self._failures.get(namespace, {}).items() if failure.until > now]

    def errors(self, namespace: str) -> dict[bytes, str]:
        """The last error of each chunk of a collection that is not to be moved now."""
        failures = self._failures.get(namespace, {})
        return {bound: failures[bound].error for bound in self.lower_bounds(namespace)}
