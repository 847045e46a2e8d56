"""The steps of a donation: their times for the changelog, and the fail points after each of them."""

from typing import Any, Final

from shardd.changelog import log_change
from shardd.migration.donor.request import MoveRangeRequest
from shardd.migration.registry import Donation
from shardd.migration.step_times import StepTimes
from shardd.shard import Shard
from wire.errors import CommandError
from wire.rawbson import raw_document

STEPS: Final = 6
"""Request read; checked and persisted; recipient started; clone caught up; recipient committed; config committed."""


class Steps(StepTimes):
    """The steps of one donation."""

    def __init__(self, shard: Shard, donation: Donation, request: MoveRangeRequest) -> None:
        super().__init__(STEPS)
        self._donation = donation
        self._shard = shard
        self._namespace = str(request.namespace)
        self._bounds: dict[str, Any] = {
            name: raw_document(bound) for name, bound in (("min", request.min), ("max", request.max)) if bound
        }
        self._recipient = request.recipient

    def set_bounds(self, low: bytes, high: bytes) -> None:
        """Both bounds of the range have become known."""
        self._bounds = {"min": raw_document(low), "max": raw_document(high)}

    async def finish(self, step: int) -> None:
        """A step is done; tests may have the migration wait here."""
        self.note(step)
        self._donation.message = self.text
        await self._shard.fail_points.hang_while(f"moveChunkHangAtStep{step}")

    async def log(self, what: str, **details: object) -> None:
        """Write ``moveChunk.<what>`` with the range and the shards to the changelog."""
        donor = self._shard.require_identity().shard_name
        entry = {**self._bounds, "from": donor, "to": self._recipient, **details}
        await log_change(self._shard, f"moveChunk.{what}", self._namespace, entry)

    async def log_times(self, error: CommandError | None) -> None:
        """Write ``moveChunk.from``: the steps that were done, and why it ended if it failed."""
        donor = self._shard.require_identity().shard_name
        end = {"note": "success"} if error is None else {"note": "aborted", "errmsg": error.message}
        entry = {**self.millis, **self._bounds, "to": self._recipient, "from": donor, **end}
        await log_change(self._shard, "moveChunk.from", self._namespace, entry)
