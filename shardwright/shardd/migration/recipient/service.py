"""The migrations to this shard: at most one attempt at a time, and the status of the last one."""

from contextlib import ExitStack
from functools import partial
from typing import Any, Final
from uuid import UUID

import trio

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.migration.active_migrations import ActiveMigrations
from shardwright.shardd.migration.documents import COMMITTED, MigrationRecipientDocument
from shardwright.shardd.migration.recipient.checkpoint import CheckpointStore
from shardwright.shardd.migration.recipient.critical_section import recipients_left_behind
from shardwright.shardd.migration.recipient.donor_link import RecipientPeers
from shardwright.shardd.migration.recipient.migration import RecipientMigration
from shardwright.shardd.migration.recipient.request import ReceiveRequest
from shardwright.shardd.migration.recipient.status import ReceiveStatus, RecipientMetrics
from shardwright.shardd.orphans.range_deletion_tasks import CLEAN_NOW
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import encode_document, spans

logger = get_logger("shardd.migration.recipient")

DECISION_SECONDS_MAX: Final = 30.0
"""Limit of the wait for the donor's decision when a migration is ended."""


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
