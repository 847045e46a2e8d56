"""Transferring a range to the recipient: everything up to the complete critical section.

The range is registered and cloned, then changes are applied. The last changes are drained once the donor blocks writes.

A batch of changes names the documents that have left the range, and contains the current versions of others. The local
copies of both are deleted before the new versions are inserted, because two documents may have swapped a unique value.
A document of another range with the same ``_id``, which may be this shard's own, is never touched: deletes are
restricted to shard keys in the range. None of this has to be atomic, since the range is not visible yet, and a batch
may be applied twice.

Documents are written with the write concern of MongoDB's ``secondaryThrottle``.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import trio

from shardwright.daemon.fail_points import FailPoints
from shardwright.shardd.context.fail_point_names import FAIL_MIGRATION_RECEIVED_OUT_OF_RANGE_OPERATION
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod.local_collections import LOCAL_WRITE_CONCERN
from shardwright.shardd.local_mongod.reserved_sessions import ReservedSession, ReservedSessions
from shardwright.shardd.local_mongod.shard_key_index import is_range_empty
from shardwright.shardd.migration.recipient.clone import (
    Cloner,
    RangeWriter,
    cut,
    delete_received,
    run_together,
    wait_range_free,
)
from shardwright.shardd.migration.recipient.donor_link import (
    CloneBatch,
    DonorCollection,
    DonorLink,
    Modifications,
    RecipientPeers,
    copy_collection,
    describe_on_donor,
)
from shardwright.shardd.migration.recipient.recipient_state import CheckpointKeeper, RecipientCriticalSection
from shardwright.shardd.migration.recipient.recv_chunk import (
    ReceiveRequest,
    ReceiveState,
    ReceiveStatus,
    RecipientStep,
    Steps,
)
from shardwright.shardd.orphans.range_deletion_tasks import CLEAN_NOW, RangeDeletionTask
from shardwright.shardd.range_deleter.range_deleter import delete_statement
from shardwright.shardd.session_history.migrated_history import HistoryPull
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.chunks import ChunkRange
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

if TYPE_CHECKING:
    from shardwright.shardd.migration.recipient.recipient_state import MigrationCheckpoint


_DELETED_AT_ONCE: Final = 1_000


class Modifier:
    """Applies the modifications of one migration."""

    def __init__(
        self,
        sessions: ReservedSessions,
        fail_points: FailPoints,
        request: ReceiveRequest,
        writer: RangeWriter,
        default_collation: Mapping[str, Any] | None,
    ) -> None:
        self._sessions = sessions
        self._fail_points = fail_points
        self._request = request
        self._writer = writer
        self._default_collation = default_collation

    async def apply(self, modifications: Modifications) -> int:
        """Apply a batch; return the number of documents in it.

        Raises DuplicateKey if a document of another range has the same ``_id``.
        """
        reload = [document for document in modifications.reload if self._is_in_range(document)]
        self._writer.replace(modifications.deleted)
        self._writer.replace(modifications.reload)
        async with self._sessions.session() as session:
            await self._delete(session, [*modifications.deleted, *modifications.reload])
            for documents, _ in cut([*self._writer.take_postponed(), *reload]):
                await self._writer.insert(session, documents)
        return len(modifications.deleted) + len(modifications.reload)

    async def complete(self) -> None:
        """Insert the postponed documents after all batches, or raise DuplicateKey if some still cannot be inserted."""
        if self._writer.has_postponed:
            await self.apply(Modifications([], [], None))
            self._writer.check_complete()

    async def _delete(self, session: ReservedSession, documents: Sequence[bytes]) -> None:
        request = self._request
        for begin in range(0, len(documents), _DELETED_AT_ONCE):
            ids = documents[begin : begin + _DELETED_AT_ONCE]
            statement = delete_statement(ids, request.pattern, request.range, self._default_collation)
            await session.delete(request.namespace, [statement])

    def _is_in_range(self, document: bytes) -> bool:
        if self._writer.is_member(document):
            return True
        if self._fail_points.should_fail(FAIL_MIGRATION_RECEIVED_OUT_OF_RANGE_OPERATION) is not None:
            raise CommandError(
                ErrorCode.InternalError,
                f"Migration received a document out of range: {document_text(document)} is not in "
                f"{self._request.range} of {self._request.namespace}",
            )
        return False


_FEW_CHANGES: Final = 64
_MORE_EVERY_SECONDS: Final = 5.0
_SHARE_MAX: Final = 0.1
"""MongoDB's ``maxCatchUpPercentageBeforeBlockingWrites``, as a fraction: the limit grows to this share of the clone."""


class CatchUpEnd:
    """Maximum number of changes in the last batch of the catch-up.

    It is zero at first. If documents are large or writers fast, each batch brings some changes. So after a while the
    limit becomes a few, then more. The donor still waits until little is left before it blocks writes.
    """

    def __init__(self, documents_cloned: int) -> None:
        self._since = trio.current_time()
        self._most = max(int(documents_cloned * _SHARE_MAX), _FEW_CHANGES)

    def is_reached(self, changes: int) -> bool:
        """Whether a batch with so many changes may be the last."""
        steps = int((trio.current_time() - self._since) / _MORE_EVERY_SECONDS)
        return changes <= (min(_FEW_CHANGES << min(steps - 1, 32), self._most) if steps else 0)


_WAIT_MS: Final = 60_000
"""MongoDB's limit for the wait after one batch; after it the migration continues."""


def effective_write_concern(context: ShardContext, request: ReceiveRequest) -> Mapping[str, Any]:
    """Return the write concern of the transactions in which documents are written.

    Without ``secondaryThrottle`` it is the primary's acknowledgement alone. With it, it is the requested write concern
    or, by default, two members if the set has more than one.

    Raises:
        CommandError: UnsatisfiableWriteConcern, the set has fewer members than requested.
    """
    if not request.secondary_throttle:
        return LOCAL_WRITE_CONCERN
    hello = context.sidecar.mirror.hello or {}
    members = len(hello.get("hosts", ())) + len(hello.get("passives", ()))
    if not request.write_concern:
        return {"w": 2, "wtimeout": _WAIT_MS} if members > 1 else LOCAL_WRITE_CONCERN
    wanted = request.write_concern.get("w", 1)
    if isinstance(wanted, int) and wanted > members:
        raise CommandError(ErrorCode.UnsatisfiableWriteConcern, "Not enough data-bearing nodes")
    concern = {name: value for name, value in request.write_concern.items() if name in ("w", "j", "wtimeout")}
    return {"wtimeout": _WAIT_MS, **concern}


_STEADY_POLL_SECONDS: Final = 0.02
"""The pause after a batch without modifications."""


class Transfer:
    """The transfer of one attempt.

    Args:
        section: the critical section, which it enters at the end.
    """

    def __init__(
        self,
        context: ShardContext,
        peers: RecipientPeers,
        request: ReceiveRequest,
        status: ReceiveStatus,
        steps: Steps,
        section: RecipientCriticalSection,
    ) -> None:
        self._context = context
        self._peers = peers
        self._request = request
        self._status = status
        self._steps = steps
        self._section = section
        self._link = DonorLink(context, request)
        self._checkpoints = CheckpointKeeper(context.mongod, peers.range_deletions, request, status)
        self._commit_requested = trio.Event()

    @property
    def resumed(self) -> "MigrationCheckpoint | None":
        """The checkpoint from which this attempt resumes, once it is loaded; None if it starts from scratch."""
        return self._checkpoints.resumed

    async def load(self) -> None:
        """Load the checkpoint of an earlier attempt; errors as for `CheckpointKeeper.load`."""
        await self._checkpoints.load()

    def request_commit(self) -> None:
        """End the catch-up, because the donor blocks writes: `run` drains the remaining changes and returns."""
        self._commit_requested.set()

    def close(self) -> None:
        """Close the connections to the donor."""
        self._link.close()

    async def run(self) -> None:
        """Receive the range up to its complete critical section, after `load`.

        Raises CommandError if a side refused or the range cannot be received, and RemoteProtocolError if the donor
        broke the protocol.
        """
        write_concern = effective_write_concern(self._context, self._request)
        writer = RangeWriter(self._context.mongod, self._request, write_concern)
        donor, first = await self._prepare()
        history = HistoryPull(self._peers.history_table, self._link.history.command, self._request.session_id)

        async def meanwhile() -> None:
            await run_together(self._checkpoints.keep, history.follow)

        async def transfer() -> None:
            await self._clone(writer, first)
            modifier = Modifier(
                self._peers.sessions, self._context.fail_points, self._request, writer, donor.options.get("collation")
            )
            await self._catch_up(modifier, writer, history)
            await self._finish(modifier, writer, history)

        await run_together(transfer, meanwhile=meanwhile)

    async def _prepare(self) -> tuple[DonorCollection, CloneBatch]:
        """Run all steps before the first insert, up to registering the range."""
        context, request = self._context, self._request
        donor = await describe_on_donor(self._link)
        await wait_range_free(context.mongod, self._peers.range_deletions, request, donor.uuid)
        await self._steps.finish(RecipientStep.OLD_RANGES_DELETED)
        # Only a donor with this active migration serves documents, so a late request leaves nothing behind. From here
        # on the donor follows its oplog and aborts the migration if options or indexes change. They may have changed
        # before, so the collection has to be described again.
        first = await self._link.clone_batch(0)
        donor = await describe_on_donor(self._link)
        await copy_collection(context, request.namespace, donor)
        await self._steps.finish(RecipientStep.COLLECTION_CREATED)
        if self._checkpoints.resumed is None:
            self._checkpoints.position = first.position
        await self._checkpoints.begin(donor.uuid)
        await self._make_room()
        await self._register(donor.uuid)
        await self._steps.finish(RecipientStep.RANGE_REGISTERED)
        return donor, first

    async def _make_room(self) -> None:
        """Delete all local documents in the range that the checkpoint does not cover.

        Documents without an earlier attempt are an error instead, except for logical sessions.
        """
        context, request, resumed = self._context, self._request, self._checkpoints.resumed
        if self._checkpoints.has_predecessor:
            low = request.range.min if resumed is None else resumed.cloned_up_to
            assert low is not None
            unreliable = ChunkRange.of(request.pattern, low, request.range.max)
            await delete_received(context.mongod, self._peers.sessions, request.namespace, request.pattern, unreliable)
        elif not await is_range_empty(context.mongod, request.namespace, request.pattern, request.range):
            if request.namespace.is_logical_sessions:  # written by mongod itself, for the sessions used on it
                sessions = self._peers.sessions
                await delete_received(context.mongod, sessions, request.namespace, request.pattern, request.range)
                return
            raise CommandError(
                ErrorCode.OperationFailed,
                f"cannot receive range {request.range} of {request.namespace}: this shard holds documents in it",
            )

    async def _register(self, collection_uuid: UUID) -> None:
        request = self._request
        pong = await self._context.mongod.command("admin", {"ping": 1})
        await self._peers.range_deletions.register(
            RangeDeletionTask(
                id=request.migration_id,
                namespace=str(request.namespace),
                collection_uuid=collection_uuid,
                donor=request.donor,
                range=request.key_range,
                pending=True,
                when=CLEAN_NOW,
                timestamp=pong["operationTime"],
            )
        )

    async def _clone(self, writer: RangeWriter, first: CloneBatch) -> None:
        """Insert the range's documents as they were when the clone began, or later."""
        self._status.enter(ReceiveState.CLONE)
        sessions, load = self._peers.sessions, self._peers.client_load
        cloner = Cloner(self._link.clone_batch, sessions, writer, self._status, self._checkpoints.prefix, load)
        await cloner.run(first)
        await self._checkpoints.save()
        await self._steps.finish(RecipientStep.CLONED)

    async def _catch_up(self, modifier: Modifier, writer: RangeWriter, history: HistoryPull) -> None:
        """Apply the changes since the clone began, until the donor wants to commit."""
        status = self._status
        status.enter(ReceiveState.CATCHUP)
        end = CatchUpEnd(status.cloned)
        while True:
            count = await self._apply_next(modifier, writer)
            status.catchup += count
            if end.is_reached(count):
                break
        # As in MongoDB, the critical section does not begin while much of the session history is still to come.
        await run_together(self._context.wait_majority, history.drain)
        await self._steps.finish(RecipientStep.CAUGHT_UP)
        status.enter(ReceiveState.STEADY)
        while not self._commit_requested.is_set():
            count = await self._apply_next(modifier, writer)
            status.steady += count
            if not count:
                with trio.move_on_after(_STEADY_POLL_SECONDS):
                    await self._commit_requested.wait()

    async def _finish(self, modifier: Modifier, writer: RangeWriter, history: HistoryPull) -> None:
        """Drain modifications and history, and enter the critical section.

        These run concurrently, because the donor blocks writes meanwhile.
        """
        self._status.enter(ReceiveState.COMMIT_START)

        async def drain() -> None:
            while count := await self._apply_next(modifier, writer):
                self._status.steady += count
            await modifier.complete()
            await self._steps.finish(RecipientStep.MODIFICATIONS_DRAINED)

        await run_together(drain, history.drain, self._section.begin)
        await self._steps.finish(RecipientStep.HISTORY_DRAINED)
        await self._section.complete()

    async def _apply_next(self, modifier: Modifier, writer: RangeWriter) -> int:
        """Apply the next batch of modifications; return the number of documents in it."""
        modifications = await self._link.modifications()
        count = 0 if modifications.is_empty else await modifier.apply(modifications)
        if modifications.position is not None and not writer.has_postponed:
            self._checkpoints.position = modifications.position
        return count
