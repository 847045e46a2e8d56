"""Chunks whose move has failed: they are tried again after a pause that grows with every failure."""

from collections.abc import Callable
from typing import Final, NamedTuple
from uuid import UUID

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

    A collection is known by its UUID: what has failed for one says nothing of the next one that has its name.

    Args:
        clock: returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = trio.current_time) -> None:
        self._clock = clock
        self._failures: dict[UUID, dict[bytes, _Failure]] = {}

    def failed(self, collection: UUID, lower_bound: bytes, error: str) -> None:
        """The move of a chunk, or of its beginning, has failed."""
        failures = self._failures.setdefault(collection, {})
        earlier = failures.pop(lower_bound, None)
        pause = FIRST_PAUSE_SECONDS if earlier is None else min(2 * earlier.pause_seconds, PAUSE_SECONDS_MAX)
        failures[lower_bound] = _Failure(pause, self._clock() + pause, error)
        if len(failures) > CHUNKS_MAX:
            del failures[next(iter(failures))]

    def moved(self, collection: UUID, lower_bound: bytes) -> None:
        """The move of a chunk has succeeded."""
        failures = self._failures.get(collection, {})
        failures.pop(lower_bound, None)
        if not failures:
            self._failures.pop(collection, None)

    def lower_bounds(self, collection: UUID) -> list[bytes]:
        """The chunks of a collection that are not to be moved now."""
        now = self._clock()
        return [bound for bound, failure in self._failures.get(collection, {}).items() if failure.until > now]

    def errors(self, collection: UUID) -> dict[bytes, str]:
        """The last error of each chunk of a collection that is not to be moved now."""
        failures = self._failures.get(collection, {})
        return {bound: failures[bound].error for bound in self.lower_bounds(collection)}
