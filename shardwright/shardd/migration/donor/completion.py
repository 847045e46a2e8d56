"""Completing a decided migration on both sides, with retries until it is done.

As in MongoDB's ``MigrationCoordinator::completeMigration``: the range deletion of the side that lost the range becomes
ready, the other side's is removed, the recipient's critical section ends, and the coordinator document goes last.
"""

from dataclasses import replace
from functools import partial
from typing import Any, Final

import trio
from bson.binary import Binary

from shardwright.daemon.backoff import Backoff, until_done
from shardwright.shardd.cluster.network import is_transient
from shardwright.shardd.context.fail_point_names import AFTER_ABORT, AFTER_COMMIT
from shardwright.shardd.context.other_shards import send_to_shard
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod.config_collection import MAJORITY
from shardwright.shardd.migration.documents import ABORTED, COMMITTED, MigrationCoordinatorDocument
from shardwright.shardd.migration.donor.store import DonorStore
from shardwright.shardd.orphans.range_deletion_tasks import CLEAN_DELAYED, CLEAN_NOW
from shardwright.shardd.range_deleter.range_deletions import RangeDeletions
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("shardd.migration.donor")

_PATIENCE_SECONDS: Final = 5.0
"""Wait of a ``moveRange`` request for an unresponsive recipient; completion then continues in the background."""


async def decide(
    context: ShardContext, coordinator: MigrationCoordinatorDocument, *, is_committed: bool
) -> MigrationCoordinatorDocument:
    """Persist the decision, with retries until that succeeds; return the coordinator document with it."""
    await context.fail_points.hang_while((AFTER_COMMIT if is_committed else AFTER_ABORT).before_making_decision_durable)
    decided = replace(coordinator, decision=COMMITTED if is_committed else ABORTED)

    def log_failure(error: BackendError | CommandError, retry_seconds: float) -> None:
        logger.warning(
            "Could not persist a migration's decision",
            migration=str(coordinator.id),
            error=str(error),
            retry_seconds=round(retry_seconds, 3),
        )

    save = partial(DonorStore(context.mongod).save_decision, decided)
    await until_done(save, Backoff(first_seconds=0.1, seconds_max=5.0), log_failure)
    return decided


class Completion:
    """The completion of one migration.

    Args:
        coordinator: its document with the decision, already persisted.
        session_id: the migration session id of the last attempt.
        waits_for_delete: whether the request waits for the deletion of the donor's documents.
    """

    def __init__(
        self,
        context: ShardContext,
        range_deletions: RangeDeletions,
        coordinator: MigrationCoordinatorDocument,
        session_id: str,
        *,
        waits_for_delete: bool,
    ) -> None:
        assert coordinator.decision is not None
        self._context = context
        self._range_deletions = range_deletions
        self._coordinator = coordinator
        self._session_id = session_id
        self._when = CLEAN_NOW if waits_for_delete else CLEAN_DELAYED
        self._store = DonorStore(context.mongod)
        self._places = AFTER_COMMIT if coordinator.decision == COMMITTED else AFTER_ABORT
        self._logger = logger.bind(
            namespace=coordinator.namespace,
            migration=str(coordinator.id),
            session=session_id,
            recipient=coordinator.recipient,
            decision=coordinator.decision,
        )

    async def run(self, nursery: trio.Nursery) -> None:
        """Complete the migration; after a few seconds, completion continues in ``nursery``."""
        is_done = False
        with trio.move_on_after(_PATIENCE_SECONDS):
            is_done = await self._try()
        if not is_done:
            nursery.start_soon(self.run_until_done)

    async def run_until_done(self) -> None:
        """Complete the migration, however long the recipient is unavailable."""
        backoff = Backoff(first_seconds=0.1, seconds_max=5.0)
        while not await self._try():
            await backoff.pause()

    async def _try(self) -> bool:
        fail_points = self._context.fail_points
        try:
            await self._complete_here()
            await fail_points.hang_while(self._places.before_sending_decision)
            await self._complete_on_recipient()
            await fail_points.hang_while(self._places.before_forgetting_migration)
            await self._store.forget(self._coordinator.id)
        except (CommandError, BackendError) as error:
            self._logger.warning("Could not complete a migration", error=str(error))
            return False
        self._logger.info("Completed a migration")
        return True

    async def _complete_here(self) -> None:
        deletions, migration_id = self._range_deletions, self._coordinator.id
        if self._coordinator.decision == COMMITTED:
            await deletions.mark_ready(migration_id, when=self._when)
        else:
            await deletions.remove(migration_id)

    async def _complete_on_recipient(self) -> None:
        coordinator, session_id = self._coordinator, self._session_id
        namespace = coordinator.namespace
        try:
            if coordinator.decision != COMMITTED:
                await self._abort_recipient()
            release = {"_recvChunkReleaseCritSec": namespace, "sessionId": session_id, "writeConcern": MAJORITY}
            await self._send(release)
            await self._send(
                {
                    "_shardsvrFinishRangeDeletion": namespace,
                    "migrationId": Binary.from_uuid(coordinator.id),
                    "decision": coordinator.decision,
                    "writeConcern": MAJORITY,
                }
            )
        except CommandError as error:
            # A shard that was removed from the cluster has nothing to release.
            if error.code != ErrorCode.ShardNotFound:
                raise
            self._logger.info("The recipient shard was removed")

    async def _abort_recipient(self) -> None:
        try:
            await self._send({"_recvChunkAbort": self._coordinator.namespace, "sessionId": self._session_id})
        except CommandError as error:
            if is_transient(error) or error.code == ErrorCode.ShardNotFound:
                raise
            self._logger.info("The recipient had nothing to abort", error=str(error))

    async def _send(self, command: dict[str, Any]) -> None:
        await send_to_shard(self._context, self._coordinator.recipient, "admin", command)
