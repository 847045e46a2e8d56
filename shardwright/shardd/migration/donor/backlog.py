"""When writes may be made to wait: once what is left to be transferred takes next to no time."""

import time
from typing import Final

from shardwright.shardd.migration.source.clone_source import CloneSource

_SMALL_IDS: Final = 64
_BIGGER_EVERY_SECONDS: Final = 5.0
_SHARE_MAX: Final = 0.1
"""MongoDB's ``maxCatchUpPercentageBeforeBlockingWrites``: this part of what was cloned is never too much."""


class BacklogLimit:
    """How much may be left when the critical section begins.

    A few documents at first, which keeps the pause of writers short. Writers who are faster than the recipient would
    keep a migration from its end for ever, so the limit doubles with time, up to MongoDB's.
    """

    def __init__(self) -> None:
        self._since = time.monotonic()

    def is_met(self, source: CloneSource) -> bool:
        """Whether the critical section may begin: nothing is left to clone, and little to catch up with."""
        if not source.is_clone_exhausted:
            return False
        doublings = int((time.monotonic() - self._since) / _BIGGER_EVERY_SECONDS)
        most = max(int(source.documents_cloned * _SHARE_MAX), _SMALL_IDS)
        return source.queued_ids <= min(_SMALL_IDS << min(doublings, 32), most)
