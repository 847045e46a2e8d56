"""Whether clients keep a shard busy, so that a migration leaves them most of what the machine can do."""

import time
from collections.abc import Callable
from typing import Final

from shardwright.daemon.operation_metrics import OperationMetrics

HEAVY_OPERATIONS_PER_SECOND: Final = 100
"""From this rate on somebody would notice how fast a clone is."""

_INTERVAL_SECONDS: Final = 0.2

_OF_CLIENTS: Final = (
    *("aggregate", "count", "delete", "distinct", "find", "findAndModify", "findandmodify", "getMore", "insert"),
    "update",
)


class ClientLoad:
    """The operations of clients on one daemon, as its metrics count them.

    Args:
        operations: the metrics.
        clock: seconds that only rise.
    """

    def __init__(self, operations: OperationMetrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._operations = operations
        self._clock = clock
        self._counted_at = clock()
        self._count = self._count_now()
        self._is_heavy = False

    @property
    def is_heavy(self) -> bool:
        """Whether there have been many lately: since the last time it was asked, if that was not just now."""
        now = self._clock()
        elapsed = now - self._counted_at
        if elapsed >= _INTERVAL_SECONDS:
            count = self._count_now()
            self._is_heavy = count - self._count >= elapsed * HEAVY_OPERATIONS_PER_SECOND
            self._counted_at, self._count = now, count
        return self._is_heavy

    def _count_now(self) -> int:
        statistics = self._operations.statistics()
        return sum(statistics[name].count for name in _OF_CLIENTS if name in statistics)
