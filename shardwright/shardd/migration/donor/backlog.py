"""When the critical section may begin: once the remaining changes can be transferred in next to no time."""

import time
from typing import Final

from shardwright.shardd.migration.source.clone_source import CloneSource

_SMALL_IDS: Final = 64
_BIGGER_EVERY_SECONDS: Final = 5.0
_SHARE_MAX: Final = 0.1
"""MongoDB's ``maxCatchUpPercentageBeforeBlockingWrites``, as a fraction: the limit grows to this share of the clone."""


class BacklogLimit:
    """How many changed documents may be left when the critical section begins.

    Only a few at first, which keeps the pause for writers short. Writers that are faster than the recipient would keep
    a migration from ever ending, so the limit doubles with time, up to MongoDB's.
    """

    def __init__(self) -> None:
        self._since = time.monotonic()

    def is_met(self, source: CloneSource) -> bool:
        """Whether the critical section may begin: nothing is left to clone and few changes are queued."""
        if not source.is_clone_exhausted:
            return False
        doublings = int((time.monotonic() - self._since) / _BIGGER_EVERY_SECONDS)
        most = max(int(source.documents_cloned * _SHARE_MAX), _SMALL_IDS)
        return source.queued_ids <= min(_SMALL_IDS << min(doublings, 32), most)
