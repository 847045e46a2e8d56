"""The steps of a recipient: their times for the changelog, and the fail points after each of them."""

import time
from typing import Final

from shardd.changelog import log_change
from shardd.migration.recipient.request import ReceiveRequest
from shardd.shard import Shard

STEPS: Final = 8
"""Old ranges deleted; collection made; range registered; cloned; caught up; modifications drained; history drained;
critical section left."""


class Steps:
    """How long each step of one attempt took.

    Attributes:
        done: the number of the last step that is done.
    """

    def __init__(self, shard: Shard, request: ReceiveRequest) -> None:
        self.done = 0
        self._shard = shard
        self._request = request
        self._millis: dict[str, int] = {}
        self._last = time.monotonic()

    async def finish(self, step: int) -> None:
        """A step is done; tests may have the migration wait here."""
        now = time.monotonic()
        self._millis[f"step {step} of {STEPS}"] = round((now - self._last) * 1000)
        self._last = now
        self.done = step
        if step < STEPS:
            await self._shard.fail_points.hang_while(f"migrateThreadHangAtStep{step}")

    async def log(self, *, is_success: bool) -> None:
        """Write ``moveChunk.to`` to the changelog, in the form of MongoDB 6.0.5."""
        request = self._request
        details = {
            **self._millis,
            **request.range.to_document(),
            "to": request.recipient,
            "from": request.donor,
            "note": "success" if is_success else "aborted",
        }
        await log_change(self._shard, "moveChunk.to", str(request.namespace), details)
