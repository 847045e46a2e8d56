"""Which operations are logged as slow; the ``profile`` command changes it."""

import random
from typing import Final

_ALL: Final = 0.0


class SlowOperations:
    """The rule for logging slow operations.

    Attributes:
        slow_ms: operations that take longer are logged.
        sample_rate: the part of them that is, from 0 to 1.
        considered_ms: operations that take longer have to be considered: all of them while there is any filter.
    """

    __slots__ = ("_filters", "considered_ms", "sample_rate", "slow_ms")

    def __init__(self, slow_ms: float, sample_rate: float = 1.0) -> None:
        self.slow_ms = self.considered_ms = slow_ms
        self.sample_rate = sample_rate
        self._filters: dict[str, bytes] = {}

    def change(self, slow_ms: float | None, sample_rate: float | None) -> None:
        """Change the rule; None leaves a part of it as it is."""
        self.slow_ms = self.slow_ms if slow_ms is None else slow_ms
        self.sample_rate = self.sample_rate if sample_rate is None else sample_rate
        self._update_considered()

    def filter_of(self, db: str) -> bytes | None:
        """The raw filter that replaces both for the operations on a database; None if there is none."""
        return self._filters.get(db)

    def set_filter(self, db: str, query: bytes | None) -> None:
        """Filter the operations on a database from now on, or no longer if it is None."""
        if query is None:
            self._filters.pop(db, None)
        else:
            self._filters[db] = query
        self._update_considered()

    def is_sampled(self, seconds: float) -> bool:
        """Whether an operation that took this long is logged, if no filter decides."""
        return seconds * 1000 >= self.slow_ms and (self.sample_rate >= 1 or random.random() < self.sample_rate)

    def _update_considered(self) -> None:
        self.considered_ms = _ALL if self._filters else self.slow_ms
