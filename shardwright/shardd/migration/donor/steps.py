"""A donor's steps: their times for the changelog and the log, and the fail point after each of them."""

from enum import IntEnum
from typing import Any

from shardwright.shardd.context.changelog import log_change
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.migration.active_migrations import ActiveDonorMigration
from shardwright.shardd.migration.donor.request import MoveRangeRequest
from shardwright.shardd.migration.step_times import StepTimes
from shardwright.sharding.bson_text import document_text
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import Logger, get_logger
from shardwright.wire.rawbson import raw_document

logger = get_logger("shardd.migration.donor")


class DonorStep(IntEnum):
    """The steps, named after their results; MongoDB's fail points and changelog number them."""

    REQUEST_READ = 1
    CHECKED_AND_PERSISTED = 2
    RECIPIENT_STARTED = 3
    CAUGHT_UP = 4
    RECIPIENT_COMMITTED = 5
    CONFIG_COMMITTED = 6


class Steps(StepTimes):
    """The steps of one migration."""

    def __init__(self, context: ShardContext, active: ActiveDonorMigration, request: MoveRangeRequest) -> None:
        super().__init__(DonorStep)
        self._active = active
        self._context = context
        self._namespace = str(request.namespace)
        self._bounds: dict[str, Any] = {
            name: raw_document(bound) for name, bound in (("min", request.min), ("max", request.max)) if bound
        }
        self._recipient = request.recipient
        self._logger = logger.bind(namespace=self._namespace, recipient=request.recipient)

    def set_bounds(self, low: bytes, high: bytes) -> None:
        """Set both bounds of the range, because the request may have only one."""
        self._bounds = {"min": raw_document(low), "max": raw_document(high)}
        self._logger = self._logger.bind(range=f"[{document_text(low)}, {document_text(high)})")

    async def finish(self, step: DonorStep, logger: Logger | None = None, **details: object) -> None:
        """Record and log that a step is done, and wait at its fail point if that is on.

        Args:
            logger: the logger of the current attempt, if there is one already.
        """
        self.note(step)
        self._active.message = self.text
        (logger or self._logger).info(
            "Finished a migration step", step=step.name.lower(), duration_ms=self.millis[self.text], **details
        )
        await self._context.fail_points.hang_while(f"moveChunkHangAtStep{step.value}")

    async def log(self, what: str, **details: object) -> None:
        """Write ``moveChunk.<what>`` with the range and the shards to the changelog."""
        donor = self._context.require_identity().shard_name
        entry = {**self._bounds, "from": donor, "to": self._recipient, **details}
        await log_change(self._context, f"moveChunk.{what}", self._namespace, entry)

    async def log_times(self, error: CommandError | None) -> None:
        """Write ``moveChunk.from`` to the changelog: the times of the finished steps, and the error if any."""
        donor = self._context.require_identity().shard_name
        end = {"note": "success"} if error is None else {"note": "aborted", "errmsg": error.message}
        entry = {**self.millis, **self._bounds, "to": self._recipient, "from": donor, **end}
        await log_change(self._context, "moveChunk.from", self._namespace, entry)
