"""The steps of a donation: their times for the changelog and the log, and the fail points after each of them."""

from typing import Any, Final

from shardwright.daemon.logs import get_logger
from shardwright.shardd.context.changelog import log_change
from shardwright.shardd.context.shard import Shard
from shardwright.shardd.migration.donor.request import MoveRangeRequest
from shardwright.shardd.migration.registry import Donation
from shardwright.shardd.migration.step_times import StepTimes
from shardwright.sharding.bson_text import document_text
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import raw_document

logger = get_logger("shardd.migration.donor")

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
        self._about: dict[str, object] = {"namespace": self._namespace, "recipient": request.recipient}

    def set_bounds(self, low: bytes, high: bytes) -> None:
        """Both bounds of the range have become known."""
        self._bounds = {"min": raw_document(low), "max": raw_document(high)}
        self._about["range"] = f"[{document_text(low)}, {document_text(high)})"

    async def finish(self, step: int, **details: object) -> None:
        """A step is done; tests may have the migration wait here.

        Args:
            step: which.
            details: what the log says of it beside its time, and namespace, recipient and range as far as known.
        """
        self.note(step)
        self._donation.message = self.text
        fields = {"step": step, "ms": self.millis[self.text], **self._about, **details}
        logger.info("A step of a migration is done", **fields)
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
