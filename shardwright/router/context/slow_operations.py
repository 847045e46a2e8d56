"""The rule for logging slow operations, set by the ``profile`` command."""

import random
from typing import Final

_ALL: Final = 0.0


class SlowOperations:
    """The rule for logging slow operations.

    Attributes:
        slow_ms: operations that take longer are logged.
        sample_rate: the fraction of them that is logged, from 0 to 1.
        considered_ms: operations that take longer must be checked; 0 while there is any filter.
    """

    __slots__ = ("_filters", "considered_ms", "sample_rate", "slow_ms")

    def __init__(self, slow_ms: float, sample_rate: float = 1.0) -> None:
        self.slow_ms = self.considered_ms = slow_ms
        self.sample_rate = sample_rate
        self._filters: dict[str, bytes] = {}

    def change(self, slow_ms: float | None, sample_rate: float | None) -> None:
        """Change the rule; None keeps a value."""
        self.slow_ms = self.slow_ms if slow_ms is None else slow_ms
        self.sample_rate = self.sample_rate if sample_rate is None else sample_rate
        self._update_considered()

    def filter_of(self, db: str) -> bytes | None:
        """Return the raw filter that replaces both limits for operations on a database; None if there is none."""
        return self._filters.get(db)

    def set_filter(self, db: str, query: bytes | None) -> None:
        """Set the filter for operations on a database; None removes it."""
        if query is None:
            self._filters.pop(db, None)
        else:
            self._filters[db] = query
        self._update_considered()

    def is_sampled(self, seconds: float) -> bool:
        """Whether to log an operation with this duration if no filter applies."""
        return seconds * 1000 >= self.slow_ms and (self.sample_rate >= 1 or random.random() < self.sample_rate)

    def _update_considered(self) -> None:
        self.considered_ms = _ALL if self._filters else self.slow_ms
