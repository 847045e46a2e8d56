"""Parameters of the range deleter, read from mongod, which has them with defaults and limits in every role.

``setParameter`` and ``getParameter`` are forwarded as for its other parameters, and mongod's startup values apply here
too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from shardwright.daemon.sidecar.mongod import LocalMongod

_CLEANUP_DELAY: Final = "orphanCleanupDelaySecs"
_BATCH_SIZE: Final = "rangeDeleterBatchSize"
_BATCH_DELAY: Final = "rangeDeleterBatchDelayMS"

_BATCH_SIZE_MAX: Final = 1_000
"""Limit for a batch, because it is one transaction, which locks its documents until it commits."""


@dataclass(frozen=True, slots=True)
class RangeDeleterParameters:
    """Delays and batch size of range deletions.

    Attributes:
        cleanup_delay_seconds: time between the end of a migration and the deletion, for reads on secondaries.
        batch_delay_seconds: the pause between batches.
    """

    cleanup_delay_seconds: float
    batch_size: int
    batch_delay_seconds: float

    @classmethod
    async def read(cls, mongod: LocalMongod) -> "RangeDeleterParameters":
        """Read the current parameters from mongod.

        Raises:
            CommandError: mongod refuses.
            BackendError: mongod does not answer.
        """
        names = dict.fromkeys((_CLEANUP_DELAY, _BATCH_SIZE, _BATCH_DELAY), 1)
        return cls.from_values(await mongod.command("admin", {"getParameter": 1, **names}))

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "RangeDeleterParameters":
        """Convert mongod's values."""
        size = min(values[_BATCH_SIZE] or _BATCH_SIZE_MAX, _BATCH_SIZE_MAX)
        return cls(values[_CLEANUP_DELAY], size, values[_BATCH_DELAY] / 1000)
