"""When the catch-up ends although the range goes on changing."""

from typing import Final

import trio

_FEW_CHANGES: Final = 64
_MORE_EVERY_SECONDS: Final = 5.0
_SHARE_MAX: Final = 0.1
"""MongoDB's ``maxCatchUpPercentageBeforeBlockingWrites``, as a fraction: the limit grows to this share of the clone."""


class CatchUpEnd:
    """How many changes the last batch of the catch-up may have.

    At first none. If documents are large or writers fast, there are always some by the time the last batch has been
    applied; so after a while a few are enough, then more. The donor still waits until little is left before it blocks
    writes.

    Args:
        documents_cloned: number of documents in the clone.
    """

    def __init__(self, documents_cloned: int) -> None:
        self._since = trio.current_time()
        self._most = max(int(documents_cloned * _SHARE_MAX), _FEW_CHANGES)

    def is_reached(self, changes: int) -> bool:
        """Whether a batch with so many changes may be the last."""
        steps = int((trio.current_time() - self._since) / _MORE_EVERY_SECONDS)
        return changes <= (min(_FEW_CHANGES << min(steps - 1, 32), self._most) if steps else 0)
