"""The parameters of the range deleter. They are mongod's own: it has them, with defaults and limits, in every role.

So ``setParameter`` and ``getParameter`` are passed on to it as any other parameter's are, and a mongod that is started
with one of them is started with it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from shardwright.daemon.sidecar.mongod import LocalMongod

_CLEANUP_DELAY: Final = "orphanCleanupDelaySecs"
_BATCH_SIZE: Final = "rangeDeleterBatchSize"
_BATCH_DELAY: Final = "rangeDeleterBatchDelayMS"

_BATCH_SIZE_MAX: Final = 1_000
"""A batch is one transaction, in which a document that is to be deleted keeps everybody else from changing it."""


@dataclass(frozen=True, slots=True)
class RangeDeleterParameters:
    """How ranges are deleted.

    Attributes:
        cleanup_delay_seconds: between the end of a migration and the deletion, for reads on secondaries.
        batch_size: how many documents are deleted in one go.
        batch_delay_seconds: the pause between batches.
    """

    cleanup_delay_seconds: float
    batch_size: int
    batch_delay_seconds: float

    @classmethod
    async def read(cls, mongod: LocalMongod) -> "RangeDeleterParameters":
        """The parameters as they are set now.

        Raises:
            CommandError: mongod does not tell.
            BackendError: mongod does not answer.
        """
        names = dict.fromkeys((_CLEANUP_DELAY, _BATCH_SIZE, _BATCH_DELAY), 1)
        return cls.from_values(await mongod.command("admin", {"getParameter": 1, **names}))

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "RangeDeleterParameters":
        """The parameters that are set to these values."""
        size = min(values[_BATCH_SIZE] or _BATCH_SIZE_MAX, _BATCH_SIZE_MAX)
        return cls(values[_CLEANUP_DELAY], size, values[_BATCH_DELAY] / 1000)
