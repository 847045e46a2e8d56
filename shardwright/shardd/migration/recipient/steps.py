"""The steps of a recipient: their times for the changelog, and the fail points after each of them."""

from typing import Final

from shardwright.shardd.context.changelog import log_change
from shardwright.shardd.context.shard import Shard
from shardwright.shardd.migration.recipient.request import ReceiveRequest
from shardwright.shardd.migration.step_times import StepTimes

STEPS: Final = 8
"""Old ranges deleted; collection made; range registered; cloned; caught up; modifications drained; history drained;
critical section left."""


class Steps(StepTimes):
    """The steps of one attempt."""

    def __init__(self, shard: Shard, request: ReceiveRequest) -> None:
        super().__init__(STEPS)
        self._shard = shard
        self._request = request

    async def finish(self, step: int) -> None:
        """A step is done; tests may have the migration wait here."""
        self.note(step)
        if step < STEPS:
            await self._shard.fail_points.hang_while(f"migrateThreadHangAtStep{step}")

    async def log(self, *, is_success: bool) -> None:
        """Write ``moveChunk.to`` to the changelog, in the form of MongoDB 6.0.5."""
        request = self._request
        details = {
            **self.millis,
            **request.range.to_document(),
            "to": request.recipient,
            "from": request.donor,
            "note": "success" if is_success else "aborted",
        }
        await log_change(self._shard, "moveChunk.to", str(request.namespace), details)
