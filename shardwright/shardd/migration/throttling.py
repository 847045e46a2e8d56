"""The parameters of migrations, and the client load, which slows migrations down."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from shardwright.daemon.operation_metrics import OperationMetrics

CATCH_UP_SECONDS_MAX: Final = 6 * 3600.0
"""MongoDB's limit for clone and catch-up."""


@dataclass
class MigrationParameters:
    """The parameters of one shard daemon.

    Attributes:
        verify: whether donor and recipient compare the range's documents before every commit (``verifyMigrations``).
        catch_up_seconds_max: limit for a migration to reach its critical section; then it is aborted
            (``migrationCatchUpTimeoutSecs``).
    """

    verify: bool = False
    catch_up_seconds_max: float = CATCH_UP_SECONDS_MAX


HEAVY_OPERATIONS_PER_SECOND: Final = 100
"""Rate above which clients would notice a clone running at full speed."""

_INTERVAL_SECONDS: Final = 0.2

_CLIENT_COMMANDS: Final = (
    *("aggregate", "count", "delete", "distinct", "find", "findAndModify", "findandmodify", "getMore", "insert"),
    "update",
)


class ClientLoad:
    """The rate of client operations on one daemon, as its metrics count them."""

    def __init__(self, operations: OperationMetrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._operations = operations
        self._clock = clock
        self._counted_at = clock()
        self._count = self._count_now()
        self._is_heavy = False

    @property
    def is_heavy(self) -> bool:
        """Whether the rate since the last measurement is high; measured at most once per interval."""
        now = self._clock()
        elapsed = now - self._counted_at
        if elapsed >= _INTERVAL_SECONDS:
            count = self._count_now()
            self._is_heavy = count - self._count >= elapsed * HEAVY_OPERATIONS_PER_SECOND
            self._counted_at, self._count = now, count
        return self._is_heavy

    def _count_now(self) -> int:
        statistics = self._operations.statistics()
        return sum(statistics[name].count for name in _CLIENT_COMMANDS if name in statistics)
