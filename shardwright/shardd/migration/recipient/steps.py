"""A recipient's steps: their times for the changelog, and the fail point after each of them."""

from enum import IntEnum

from shardwright.shardd.context.changelog import log_change
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.migration.recipient.request import ReceiveRequest
from shardwright.shardd.migration.step_times import StepTimes


class RecipientStep(IntEnum):
    """The steps, named after what each has achieved; MongoDB's fail points and changelog number them."""

    OLD_RANGES_DELETED = 1
    COLLECTION_CREATED = 2
    RANGE_REGISTERED = 3
    CLONED = 4
    CAUGHT_UP = 5
    MODIFICATIONS_DRAINED = 6
    HISTORY_DRAINED = 7
    CRITICAL_SECTION_LEFT = 8


class Steps(StepTimes):
    """The steps of one attempt."""

    def __init__(self, context: ShardContext, request: ReceiveRequest) -> None:
        super().__init__(RecipientStep)
        self._context = context
        self._request = request

    async def finish(self, step: RecipientStep) -> None:
        """Record that a step is done, and wait at its fail point if that is on."""
        self.note(step)
        if step is not RecipientStep.CRITICAL_SECTION_LEFT:
            await self._context.fail_points.hang_while(f"migrateThreadHangAtStep{step.value}")

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
        await log_change(self._context, "moveChunk.to", str(request.namespace), details)
