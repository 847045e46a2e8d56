"""The donor's side of one migration, from the first attempt at the clone to its outcome.

`donor_service` runs the steps before it, `Completion` the steps after it. The steps and their order are as in MongoDB's
``MigrationSourceManager``. `donor_operation` is its entry in ``currentOp``.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import trio

from shardwright.daemon.backoff import Backoff
from shardwright.daemon.current_op import operation_entry
from shardwright.shardd.context.fail_point_names import (
    FAIL_MIGRATION_COMMIT,
    HANG_AFTER_BLOCKING_WRITES,
    HANG_BEFORE_LEAVING_CRITICAL_SECTION,
)
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.exchange.remote_sets import as_command_error
from shardwright.shardd.metadata.critical_sections import Drain
from shardwright.shardd.migration.active_migrations import (
    ActiveDonorMigration,
    MigrationCoordinatorDocument,
    MigrationParameters,
    new_session_id,
)
from shardwright.shardd.migration.donor.clone_source import CloneSource
from shardwright.shardd.migration.donor.commit import DonorCriticalSection, commit_on_config, wait_outcome
from shardwright.shardd.migration.donor.donor_state import (
    BacklogLimit,
    DonorStep,
    DonorStore,
    MigrationAttempts,
    RecipientLink,
    RecipientLostError,
    RecipientStatus,
    Steps,
    verify_range,
)
from shardwright.shardd.migration.donor.move_range import MovePlan
from shardwright.shardd.session_history.donor_history import DonorHistory
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import Logger, get_logger
from shardwright.wire.rawbson import encode_document, raw_document

logger = get_logger("shardd.migration.donor")

ATTEMPTS_MAX: Final = 5
"""Starts and resumptions of the clone before the migration is aborted."""

COMMIT_SECONDS_MAX: Final = 30.0
"""Time that the recipient may take to catch up in the critical section, as in MongoDB."""

PROGRESS_SECONDS: Final = 10.0
"""Seconds between log lines about a long clone or catch-up."""

_POLL_SECONDS_MIN: Final = 0.001
_POLL_SECONDS_MAX: Final = 1.024
_RELEASE_SECONDS_MAX: Final = 5.0
_STEADY: Final = "steady"


@dataclass
class Outcome:
    """The outcome of a migration.

    Attributes:
        error: the reason of an abort; None if it was committed.
    """

    error: CommandError | None = None
    counts: Mapping[str, Any] = field(default_factory=dict)


class DonorMigration:
    """One active migration.

    Args:
        attempts: the attempts of earlier terms.
        wait_for_commits: waits for cross-shard commits whose session history moves with the range.

    Attributes:
        attempts: all attempts so far.
        session_id: the migration session id of the current attempt.
        source: the recipient's source of documents in this attempt; None while there is nothing to pull.
        history: the recipient's source of session history, alongside ``source``.
        documents_estimated: estimated number of documents to clone.
        is_committing: whether it can no longer be aborted.
        critical_section_seconds: duration of the critical section with all attempts, once it has been left.
    """

    def __init__(
        self,
        context: ShardContext,
        parameters: MigrationParameters,
        plan: MovePlan,
        coordinator: MigrationCoordinatorDocument,
        attempts: MigrationAttempts,
        steps: Steps,
        nursery: trio.Nursery,
        wait_for_commits: Callable[[], Awaitable[None]],
    ) -> None:
        self.plan = plan
        self.coordinator = coordinator
        self.attempts = attempts
        self.steps = steps
        self.recipient = RecipientLink(context, coordinator, plan)
        self.session_id = coordinator.session_id
        self.source: CloneSource | None = None
        self.history: DonorHistory | None = None
        self.documents_estimated = 0
        self.status: RecipientStatus | None = None
        self.is_committing = False
        self.critical_section_seconds = 0.0
        self._context = context
        self._parameters = parameters
        self._nursery = nursery
        self._wait_for_commits = wait_for_commits
        self._store = DonorStore(context.mongod)
        self._abortable = trio.CancelScope()
        self._abort_reason: CommandError | None = None
        self._source_changed = trio.lowlevel.ParkingLot()
        self._is_over = False
        self._cloned = (0, 0)
        self._next_progress = trio.current_time() + PROGRESS_SECONDS

    # From other tasks

    def abort(self, error: CommandError) -> None:
        """Abort it with an error, unless it is already committing."""
        if not self.is_committing and self._abort_reason is None:
            self._logger.info("Aborting a migration", error=str(error))
            self._abort_reason = error
            self._abortable.cancel()

    async def wait_source(self, session_id: str) -> CloneSource:
        """Return the source of an attempt, as soon as the recipient can pull from it.

        Raises IllegalOperation if another attempt is active, and NotYetInitialized if the migration is over.
        """
        while session_id == self.session_id and not self._is_over:
            if self.source is not None:
                return self.source
            await self._source_changed.park()
        if self._is_over:
            raise CommandError(ErrorCode.NotYetInitialized, "No active migrations were found")
        raise CommandError(
            ErrorCode.IllegalOperation,
            f"Requested migration session id {session_id} does not match active session id {self.session_id}",
        )

    async def wait_history(self, session_id: str) -> DonorHistory:
        """Return the session history of an attempt; waits and errors are as for `wait_source`."""
        await self.wait_source(session_id)
        assert self.history is not None
        return self.history

    # From the first attempt to the outcome

    async def run(self) -> Outcome:
        """Move the range. The critical section has been left when this returns.

        After a cancellation it may still be in effect, and the caller has to leave it.
        """
        # Commits count as transactions: both delay the section for as long as other shards take.
        commits = Drain(self._wait_for_commits, has_transactions=lambda: True)
        section = DonorCriticalSection(self._context, self.coordinator, commits)
        outcome = Outcome()
        try:
            with self._abortable:
                await self._catch_up_and_block(section)
                # There is no checkpoint between here and the commit, so an abort has either come already or is too
                # late.
                self.is_committing = self._abort_reason is None
            if self._abort_reason is not None:
                raise self._abort_reason
            assert self.status is not None
            outcome.counts = self.status.counts
            outcome.error = await self._commit(section, self.status)
        except (CommandError, BackendError) as error:
            outcome.error = as_command_error(error)
        finally:
            self._is_over = True
            self._set_source(None)
        section.leave()
        self.critical_section_seconds = section.seconds
        if outcome.error is None:
            self._log_success(section, outcome)
        return outcome

    async def _catch_up_and_block(self, section: DonorCriticalSection) -> None:
        """Run all steps before the commit on the config servers."""
        with trio.move_on_after(self._parameters.catch_up_seconds_max):
            while not await self._attempt(section):
                continue
            return
        raise CommandError(ErrorCode.ExceededTimeLimit, "Timed out waiting for the cloner to catch up")

    async def _attempt(self, section: DonorCriticalSection) -> bool:
        """Run one attempt up to the commit, resuming the clone if possible; return False if the recipient was lost."""
        if len(self.attempts.attempts) >= ATTEMPTS_MAX:
            raise CommandError(ErrorCode.OperationFailed, f"the clone was interrupted {ATTEMPTS_MAX} times")
        await self._begin_attempt()
        try:
            source = await self._start_source()
            await self._finish_step(DonorStep.RECIPIENT_STARTED)
            await self._wait_caught_up(source)
            await self._finish_step(DonorStep.CAUGHT_UP)
            await self._block_writes(section, source)
            await self._finish_step(DonorStep.RECIPIENT_COMMITTED)
        except RecipientLostError as lost:
            self._logger.warning("Lost the recipient of a migration", error=str(lost))
            return False
        finally:
            self._set_source(None)
        return True

    async def _begin_attempt(self) -> None:
        """Persist a new attempt."""
        if self.attempts.attempts:
            documents, size = self._cloned
            self.attempts = self.attempts.with_progress(documents, size)
            self.session_id = new_session_id(self.coordinator.donor, self.coordinator.recipient)
        now = datetime.now(UTC)
        self.attempts = self.attempts.with_new(self.session_id, now)
        await self._store.save_attempts(self.attempts)

    async def _start_source(self) -> CloneSource:
        """Start the recipient, then the source at the position in the recipient's reply."""
        reply = await self.recipient.start(self.attempts)
        history = self.plan.new_history(self._context)
        source = self.plan.new_source(self._context, self.session_id, history.observe)
        resume = reply.get("resumeFrom")
        if resume is None:
            await source.start()
        else:
            self._logger.info("Resuming a migration", position=str(resume["position"]))
            key = resume.get("key")
            await source.start(position=resume["position"], from_key=None if key is None else encode_document(key))
        self._nursery.start_soon(self._follow, source, history)
        self._set_source(source, history)
        return source

    async def _follow(self, source: CloneSource, history: DonorHistory) -> None:
        """Run a source; its error aborts the migration. Then close the history, which needs the source."""
        try:
            await source.run()
        except (CommandError, BackendError) as error:
            self.abort(as_command_error(error))
        except Exception as error:
            self._logger.exception("Internal error in the source of a migration")
            self.abort(as_command_error(error))
        finally:
            await history.close()

    async def _wait_caught_up(self, source: CloneSource) -> None:
        """Poll the recipient until next to nothing is left to transfer."""
        limit, backoff = BacklogLimit(), Backoff(_POLL_SECONDS_MIN, _POLL_SECONDS_MAX)
        while True:
            asked = trio.current_time()
            self.status = await self.recipient.status(self.session_id)
            if self.status.state == _STEADY and limit.is_met(source):
                return
            self._maybe_log_progress()
            # The recipient may have delayed its reply until its state changed; that time counts towards the pause.
            await trio.sleep(max(asked + backoff.next_seconds() - trio.current_time(), _POLL_SECONDS_MIN))

    async def _block_writes(self, section: DonorCriticalSection, source: CloneSource) -> None:
        """Enter the critical section and make the recipient apply the remaining changes."""
        self.attempts = self.attempts.with_critical_section()
        await self._store.save_attempts(self.attempts)
        backoff = Backoff(first_seconds=0.5, seconds_max=5.0)
        while not await section.try_block_writes():
            # A write takes long. Other writes must not wait for it, and changes for the recipient must not pile up.
            self._logger.info("Writes in progress are delaying a critical section")
            await backoff.pause()
            await self._wait_caught_up(source)
        section.finish("drain")
        with trio.move_on_after(COMMIT_SECONDS_MAX):
            await section.notify_secondaries()
            await self._context.fail_points.hang_while(HANG_AFTER_BLOCKING_WRITES)
            await source.wait_followed(await self._context.mongod.operation_time())
            section.finish("follow")
            self.status = await self.recipient.commit(self.session_id)
            section.finish("recipient")
            self._context.fail_points.fail_if_on(FAIL_MIGRATION_COMMIT)
            if self._parameters.verify:
                await verify_range(self._context, self.coordinator, self.plan)
                section.finish("verify")
            return
        raise CommandError(ErrorCode.ExceededTimeLimit, "the recipient did not catch up in the critical section")

    async def _commit(self, section: DonorCriticalSection, status: RecipientStatus) -> CommandError | None:
        """Commit on the config servers; return the error, or None if it succeeded."""
        section.block_reads()
        failure: CommandError | None = None
        try:
            await commit_on_config(self._context, self.plan, status.cluster_time)
        except (CommandError, BackendError) as error:
            self._logger.warning("Unknown whether a migration was committed", error=str(error))
            if not await wait_outcome(self._context, self.coordinator):
                failure = as_command_error(error)
        section.finish("commit")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._release_recipient)
            await section.refresh()
            section.finish("refresh")
            await self._context.fail_points.hang_while(HANG_BEFORE_LEAVING_CRITICAL_SECTION)
            section.leave()
        if failure is None:
            await self._finish_step(DonorStep.CONFIG_COMMITTED)
        return failure

    async def _release_recipient(self) -> None:
        """End the recipient's critical section. If the recipient cannot be reached, `Completion` tries again."""
        try:
            with trio.move_on_after(_RELEASE_SECONDS_MAX):
                await self.recipient.release(self.session_id)
        except CommandError as error:
            self._logger.warning("Could not release the recipient", error=str(error))

    async def _finish_step(self, step: DonorStep) -> None:
        await self.steps.finish(step, self._logger, **self._progress_fields())

    def _maybe_log_progress(self) -> None:
        """Log the progress, at most once in `PROGRESS_SECONDS`."""
        now = trio.current_time()
        if now >= self._next_progress:
            self._next_progress = now + PROGRESS_SECONDS
            self._logger.info("Migration in progress", **self._progress_fields())

    def _log_success(self, section: DonorCriticalSection, outcome: Outcome) -> None:
        counts = outcome.counts
        self._logger.info(
            "Donated a range",
            blocked_ms=round(section.seconds * 1000, 1),
            **section.phases,
            documents_cloned=int(counts.get("cloned", 0)),
            bytes_cloned=int(counts.get("clonedBytes", 0)),
            documents_caught_up=int(counts.get("catchup", 0)),
            documents_steady=int(counts.get("steady", 0)),
        )

    def _progress_fields(self) -> dict[str, object]:
        """Return the progress as log fields, including the clones of earlier attempts."""
        source, status = self.source, self.status
        counts = {} if status is None else status.counts
        cloned = int(counts.get("cloned", 0))
        return {
            "attempt": len(self.attempts.attempts),
            "documents_cloned": cloned,
            "documents_estimated": max(self.documents_estimated, cloned),
            "bytes_cloned": int(counts.get("clonedBytes", 0)),
            "documents_queued": 0 if source is None else source.queued_ids,
            "bytes_queued": 0 if source is None else source.queued_bytes,
            "recipient_state": "" if status is None else status.state,
        }

    def _set_source(self, source: CloneSource | None, history: DonorHistory | None = None) -> None:
        if self.source is not None:
            self._cloned = (self.source.documents_cloned, self.source.bytes_cloned)
            self.source.close()
        self.source, self.history = source, history
        self._source_changed.unpark_all()

    @property
    def _logger(self) -> Logger:
        """The logger for the current attempt."""
        return logger.bind(
            namespace=self.coordinator.namespace,
            migration=str(self.coordinator.id),
            session=self.session_id,
            recipient=self.coordinator.recipient,
            range=str(self.plan.range),
        )


def donor_operation(active: ActiveDonorMigration, migration: DonorMigration | None, address: str) -> dict[str, Any]:
    """Return a migration's ``currentOp`` entry as on a MongoDB 6.0 donor, with more detail about its progress.

    Args:
        migration: its state; None until the request has been checked and persisted.
        address: ``host:port`` of this daemon.
    """
    key = active.key
    bounds = {name: raw_document(bound) for name, bound in (("min", key.min), ("max", key.max)) if bound is not None}
    command: dict[str, Any] = {"moveRange": key.namespace, **bounds, "toShard": key.recipient}
    details: dict[str, Any] = {"ns": key.namespace, "command": command, "msg": active.message}
    if migration is not None:
        command |= migration.coordinator.range.to_document()
        command |= {"fromShard": migration.coordinator.donor, "sessionId": migration.session_id}
        details |= _transfer(migration)
    return operation_entry("MoveChunk", address, active.opid, active.began, details)


def _transfer(migration: DonorMigration) -> dict[str, Any]:
    source, status = migration.source, migration.status
    cloned = 0 if source is None else source.documents_cloned
    return {
        "progress": {"done": cloned, "total": max(migration.documents_estimated, cloned)},
        "migration": {
            "state": "" if status is None else status.state,
            "attempt": len(migration.attempts.attempts),
            "documentsCloned": cloned,
            "bytesCloned": 0 if source is None else source.bytes_cloned,
            "documentsQueued": 0 if source is None else source.queued_ids,
            "bytesQueued": 0 if source is None else source.queued_bytes,
            "counts": {} if status is None else dict(status.counts),
        },
    }
