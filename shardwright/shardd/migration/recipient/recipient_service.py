"""The migrations to this shard: at most one attempt at a time, and the status of the last one; ``currentOp``."""

from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from uuid import UUID

import trio

from shardwright.daemon.backoff import Backoff
from shardwright.daemon.current_op import new_opid, operation_entry
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.exchange.remote_sets import as_command_error
from shardwright.shardd.migration.active_migrations import COMMITTED, ActiveMigrations, MigrationRecipientDocument
from shardwright.shardd.migration.recipient.donor_link import RecipientPeers
from shardwright.shardd.migration.recipient.recipient_state import (
    CheckpointStore,
    RecipientCriticalSection,
    recipients_left_behind,
)
from shardwright.shardd.migration.recipient.recv_chunk import (
    ReceiveRequest,
    ReceiveState,
    ReceiveStatus,
    RecipientMetrics,
    RecipientStep,
    Steps,
)
from shardwright.shardd.migration.recipient.transfer import Transfer
from shardwright.shardd.orphans.range_deletion_tasks import CLEAN_NOW
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError, RemoteProtocolError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import encode_document, raw_document, spans

logger = get_logger("shardd.migration.recipient")

COMMIT_SECONDS_MAX: Final = 30.0
"""Limit for the catch-up, and then for the last modifications, once the donor wants to commit."""

_BEFORE_COMMIT: Final = frozenset({ReceiveState.READY, ReceiveState.CLONE, ReceiveState.CATCHUP, ReceiveState.STEADY})
_COMMITTING: Final = frozenset({ReceiveState.STEADY, ReceiveState.COMMIT_START})
_IN_CRITICAL_SECTION: Final = frozenset({ReceiveState.COMMIT_START, ReceiveState.ENTERED_CRITICAL_SECTION})
_PREPARED: Final = frozenset({ReceiveState.ENTERED_CRITICAL_SECTION, ReceiveState.DONE})

DECISION_SECONDS_MAX: Final = 30.0
"""Limit of the wait for the donor's decision when a migration is ended."""


class RecipientMigration:
    """One attempt. The caller guarantees that no other migration is active on this shard.

    Args:
        on_end: called when the attempt is over.
    """

    def __init__(
        self, context: ShardContext, peers: RecipientPeers, request: ReceiveRequest, on_end: Callable[[], None]
    ) -> None:
        self.request = request
        self.status = ReceiveStatus(request)
        self.steps = Steps(context, request)
        self.opid = new_opid()
        self.began = datetime.now(UTC)
        self._on_end = on_end
        self._section = RecipientCriticalSection(context, _recipient_document(request))
        self._transfer = Transfer(context, peers, request, self.status, self.steps, self._section)
        self._scope = trio.CancelScope()
        self._stop_reason: CommandError | None = None
        self._loaded = trio.Event()
        self._release_requested = trio.Event()
        self._ended = trio.Event()
        self._logger = logger.bind(
            namespace=str(request.namespace),
            migration=str(request.migration_id),
            session=request.session_id,
            donor=request.donor,
            range=str(request.range),
        )

    def kill(self) -> None:
        """End the attempt for ``killOp``, unless its critical section has begun. It fails, which its donor notices."""
        if self.status.state is not ReceiveState.ENTERED_CRITICAL_SECTION:
            self._stop(CommandError(ErrorCode.Interrupted, "operation was interrupted"))

    # For the donor's commands

    async def wait_started(self) -> dict[str, Any]:
        """Return the reply to ``_recvChunkStart``, or raise the error of an attempt that failed before it began."""
        await self._loaded.wait()
        if self.status.error is not None and not self.steps.done:
            raise self.status.error
        reply: dict[str, Any] = {"started": True}
        resumed = self._transfer.resumed
        if resumed is not None:
            assert resumed.cloned_up_to is not None
            reply["resumeFrom"] = {"key": raw_document(resumed.cloned_up_to), "position": resumed.position}
        return reply

    async def commit(self) -> None:
        """Apply the last modifications while the donor blocks writes, and enter the critical section.

        Raises CommandFailed if the attempt is not steady, fails or takes too long.
        """
        status = self.status
        with trio.move_on_after(COMMIT_SECONDS_MAX) as patience:
            # The donor may want to commit while the last batch before steady is still being applied.
            await status.wait(lambda state: state is not ReceiveState.CATCHUP)
        if patience.cancelled_caught:
            raise CommandError(ErrorCode.CommandFailed, "startCommit timed out waiting for the catch up completion")
        if status.state not in _COMMITTING | _PREPARED:
            raise not_steady(self.request.session_id, self)
        self._transfer.request_commit()
        with trio.move_on_after(COMMIT_SECONDS_MAX) as patience:
            await status.wait(lambda state: state not in _COMMITTING)
        if patience.cancelled_caught:
            error = CommandError(ErrorCode.CommandFailed, "startCommit timed out waiting for the last modifications")
            self._stop(error)
            raise error
        if status.state not in _PREPARED:
            raise CommandError(ErrorCode.CommandFailed, "startCommit failed, final data failed to transfer")

    async def release(self) -> None:
        """Leave the critical section, if it has begun, after the donor's decision; return when that is done.

        Raises InterruptedDueToReplStateChange if the next primary has to leave it.
        """
        if self.status.state in _IN_CRITICAL_SECTION or self._section.has_begun:
            self._release_requested.set()
            await self._ended.wait()
        if self._section.has_begun:
            raise CommandError(
                ErrorCode.InterruptedDueToReplStateChange,
                "operation was interrupted because the primary stepped down",
            )

    async def abort(self) -> None:
        """Abort the attempt, unless the critical section has begun: from then on only the donor decides.

        The received documents stay until the donor requests their deletion.
        """
        if self.status.state is not ReceiveState.ENTERED_CRITICAL_SECTION:
            self._stop(None)
            await self._ended.wait()

    async def wait_ended(self) -> None:
        """Return when the attempt is over."""
        await self._ended.wait()

    def can_be_replaced(self) -> bool:
        """Whether another attempt at the same migration may replace this one."""
        return self.status.state in _BEFORE_COMMIT

    # Lifecycle

    async def run(self) -> None:
        """Receive the range."""
        await self._run(self._receive)

    async def run_recovered(self, *, is_prepared: bool) -> None:
        """Keep a restored critical section in effect until the donor reports its decision.

        Args:
            is_prepared: whether the range is known to be complete here, so that a repeated commit may succeed.
        """
        if is_prepared:
            self.status.enter(ReceiveState.ENTERED_CRITICAL_SECTION)
        else:
            self._stop_reason = CommandError(
                ErrorCode.InterruptedDueToReplStateChange, "the recipient's primary changed before all was received"
            )
            self.status.fail(self._stop_reason)
        self._loaded.set()
        await self._run(self._wait_release)

    def discard(self) -> None:
        """End an attempt that is not going to be run."""
        self._on_end()

    async def restore_section(self) -> bool:
        """Re-enter the critical section of an earlier term; see `RecipientCriticalSection.restore`."""
        return await self._section.restore()

    async def _run(self, work: Callable[[], Any]) -> None:
        error: CommandError | None = None
        try:
            with self._scope:
                try:
                    await work()
                except (CommandError, BackendError, RemoteProtocolError) as failure:
                    error = as_command_error(failure)
                except Exception as failure:
                    self._logger.exception("Internal error while receiving a range")
                    error = CommandError(ErrorCode.InternalError, f"{type(failure).__name__}: {failure}")
            if self._section.has_begun:
                await self._leave_section()
            self._conclude(error or self._stop_reason)
        finally:
            self._loaded.set()
            self._transfer.close()
            self.status.end()
            self._on_end()
            self._ended.set()
        await self.steps.log(is_success=self.status.state is ReceiveState.DONE)

    def _conclude(self, error: CommandError | None) -> None:
        if error is not None:
            self._logger.warning("Could not receive a range", error=str(error))
            self.status.fail(error)
        elif self._scope.cancelled_caught:
            self._logger.info("Gave up receiving a range")
            self.status.enter(ReceiveState.ABORT)
        else:
            self._logger.info("Received a range", documents=self.status.cloned)
            self.status.enter(ReceiveState.DONE)

    async def _receive(self) -> None:
        await self._transfer.load()
        self._loaded.set()
        await self._transfer.run()
        self.status.enter(ReceiveState.ENTERED_CRITICAL_SECTION)
        await self._wait_release()
        await self.steps.finish(RecipientStep.CRITICAL_SECTION_LEFT)

    async def _wait_release(self) -> None:
        await self._release_requested.wait()
        await self._leave_section()

    async def _leave_section(self) -> None:
        """Leave the critical section, with retries until that succeeds; after a step-down the next primary does it."""
        backoff = Backoff(first_seconds=0.2, seconds_max=1.0)
        while self._section.has_begun:
            try:
                await self._section.leave()
            except (CommandError, BackendError) as error:
                self._logger.warning("Could not leave the critical section", error=str(error))
                await backoff.pause()

    def _stop(self, reason: CommandError | None) -> None:
        self._stop_reason = self._stop_reason or reason
        self._scope.cancel()


def not_steady(session_id: str, active: RecipientMigration | None) -> CommandError:
    """Return MongoDB's error for ``_recvChunkCommit`` in the wrong state."""
    current = "No active session on this shard."
    if active is not None and active.status.is_active:
        current = f"Current session is {active.request.session_id}"
    return CommandError(
        ErrorCode.CommandFailed,
        f"Migration startCommit attempted when not in STEADY state. Sender's session is {session_id}. {current}",
    )


def _recipient_document(request: ReceiveRequest) -> MigrationRecipientDocument:
    return MigrationRecipientDocument(
        id=request.migration_id,
        session_id=request.session_id,
        namespace=str(request.namespace),
        range=request.key_range,
        donor=request.donor,
        lsid=request.lsid,
        txn_number=request.txn_number,
    )


def recipient_operation(migration: "RecipientMigration", address: str) -> dict[str, Any]:
    """Return a migration's ``currentOp`` entry on its recipient, in the same format as on the donor.

    Args:
        migration: the current attempt.
    """
    request, status = migration.request, migration.status
    details = {
        "ns": str(request.namespace),
        "command": {
            "_recvChunkStart": str(request.namespace),
            **request.range.to_document(),
            "fromShard": request.donor,
            "toShard": request.recipient,
            "sessionId": request.session_id,
        },
        "msg": migration.steps.text,
        "progress": {"done": status.cloned, "total": status.cloned},
        "migration": {
            "state": str(status.state),
            "attempt": max(len(request.attempts), 1),
            "documentsCloned": status.cloned,
            "bytesCloned": status.cloned_bytes,
            "counts": status.counts(),
        },
    }
    return operation_entry("migrateThread", address, migration.opid, migration.began, details)


class RecipientService:
    """Receives ranges.

    Attributes:
        last: the latest attempt, active or over; None if there has been none since step-up.
    """

    def __init__(self, context: ShardContext, peers: RecipientPeers, active: ActiveMigrations) -> None:
        self.last: RecipientMigration | None = None
        self._context = context
        self._peers = peers
        self._active_migrations = active
        self._nursery: trio.Nursery | None = None
        self._metrics = RecipientMetrics(context.metrics, lambda: self.status)

    @property
    def active(self) -> RecipientMigration | None:
        """The active attempt."""
        return self.last if self.last is not None and self.last.status.is_active else None

    @property
    def status(self) -> ReceiveStatus:
        """The status of the last attempt."""
        return ReceiveStatus(None) if self.last is None else self.last.status

    def of_session(self, session_id: str) -> RecipientMigration | None:
        """Return the active attempt if it has this migration session id, else None."""
        active = self.active
        return active if active is not None and active.request.session_id == session_id else None

    async def begin_term(self, nursery: trio.Nursery) -> None:
        """Re-enter the critical sections of earlier terms; they are in effect when this returns."""
        self.last = None
        for document in await recipients_left_behind(self._context):
            request = _recovered(document, self._context.require_identity().shard_name)
            migration = self._make(request)
            try:
                is_prepared = await migration.restore_section()
            except BaseException:
                migration.discard()
                raise
            logger.info("Recovered a critical section", namespace=document.namespace, session=document.session_id)
            nursery.start_soon(partial(migration.run_recovered, is_prepared=is_prepared))
        self._nursery = nursery

    def end_term(self) -> None:
        """Drop the attempt, which was cancelled with its nursery; the next primary recovers its critical section."""
        self._nursery = None
        self.last = None

    async def start(self, request: ReceiveRequest) -> dict[str, Any]:
        """Begin to receive a range, or resume an earlier attempt; return the reply.

        A repeated request joins the active attempt. An earlier attempt at the same migration is aborted first. Raises
        NotWritablePrimary, or ConflictingOperationInProgress if another migration is active here.
        """
        active = self.of_session(request.session_id)
        if active is None:
            former = self.active
            if former is not None and former.request.migration_id == request.migration_id and former.can_be_replaced():
                await former.abort()
            if self._nursery is None:
                raise CommandError(ErrorCode.NotWritablePrimary, "not primary")
            active = self._make(request)
            self._nursery.start_soon(active.run)
        return await active.wait_started()

    async def finish(self, migration_id: UUID, decision: str) -> None:
        """Act on the outcome that the donor reports: keep the range, or delete the received documents.

        Calls may be repeated.
        """
        active = self.active
        if active is not None and active.request.migration_id == migration_id:
            await active.abort()
            await active.release()
        if decision == COMMITTED:
            await self._peers.range_deletions.remove(migration_id)
        else:
            await self._peers.range_deletions.mark_ready(migration_id, when=CLEAN_NOW)
        await CheckpointStore(self._context.mongod).remove(migration_id)

    async def end(self, namespace: str) -> None:
        """Abort the attempt to receive a range of a collection, and wait for its end.

        Raises ConflictingOperationInProgress if the range is complete here and awaits the donor's decision.
        """
        active = self.active
        if active is None or str(active.request.namespace) != namespace:
            return
        with trio.move_on_after(DECISION_SECONDS_MAX) as patience:
            await active.abort()
            await active.wait_ended()
        if patience.cancelled_caught:
            raise CommandError(
                ErrorCode.ConflictingOperationInProgress,
                f"a range of {namespace} that was received from {active.request.donor} waits for the donor's decision",
            )

    def _make(self, request: ReceiveRequest) -> RecipientMigration:
        stack = ExitStack()
        stack.enter_context(
            self._active_migrations.receiving(str(request.namespace), str(request.range), request.donor)
        )
        migration = self.last = RecipientMigration(self._context, self._peers, request, stack.close)
        stack.callback(lambda: self._metrics.ended(migration.status))
        return migration


def _recovered(document: MigrationRecipientDocument, recipient: str) -> ReceiveRequest:
    """Return as much of the original request as the persisted document contains."""
    low, high = document.range.min, document.range.max
    pattern = ShardKeyPattern.from_bson(encode_document({name.decode(): 1 for name, _ in spans(low)}))
    return ReceiveRequest(
        migration_id=document.id,
        session_id=document.session_id,
        namespace=Namespace.parse(document.namespace),
        collection_uuid=None,
        pattern=pattern,
        range=ChunkRange.of(pattern, low, high),
        donor=document.donor,
        donor_connection_string="",
        recipient=recipient,
        lsid=document.lsid,
        txn_number=document.txn_number,
        secondary_throttle=False,
        write_concern={},
    )
