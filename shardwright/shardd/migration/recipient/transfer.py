"""Transferring a range to the recipient: everything up to the complete critical section.

The range is registered and cloned, changes are applied, and once the donor blocks writes the last of them are drained.
"""

from typing import TYPE_CHECKING, Final
from uuid import UUID

import trio

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod.range_contents import is_range_empty
from shardwright.shardd.migration.recipient.catch_up import Modifier
from shardwright.shardd.migration.recipient.catch_up_end import CatchUpEnd
from shardwright.shardd.migration.recipient.checkpoint_keeper import CheckpointKeeper
from shardwright.shardd.migration.recipient.clone import Cloner
from shardwright.shardd.migration.recipient.collection_copy import DonorCollection, copy_collection, describe_on_donor
from shardwright.shardd.migration.recipient.critical_section import RecipientCriticalSection
from shardwright.shardd.migration.recipient.donor_link import CloneBatch, DonorLink
from shardwright.shardd.migration.recipient.peers import RecipientPeers
from shardwright.shardd.migration.recipient.range_writer import RangeWriter
from shardwright.shardd.migration.recipient.received_range import delete_received, wait_range_free
from shardwright.shardd.migration.recipient.request import ReceiveRequest
from shardwright.shardd.migration.recipient.secondary_throttle import effective_write_concern
from shardwright.shardd.migration.recipient.status import ReceiveState, ReceiveStatus
from shardwright.shardd.migration.recipient.steps import RecipientStep, Steps
from shardwright.shardd.migration.recipient.together import run_together
from shardwright.shardd.orphans.range_deletion_task import CLEAN_NOW, RangeDeletionTask
from shardwright.shardd.session_history.pull import HistoryPull
from shardwright.sharding.chunks import ChunkRange
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

if TYPE_CHECKING:
    from shardwright.shardd.migration.recipient.checkpoint import MigrationCheckpoint

_STEADY_POLL_SECONDS: Final = 0.02
"""The pause after a batch without modifications."""


class Transfer:
    """The transfer of one attempt.

    Args:
        context: this shard daemon's context.
        peers: the components that it works with.
        request: the request to receive the range.
        status: where its progress is reported.
        steps: where its finished steps are recorded.
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
        """End the catch-up, because the donor blocks writes: `run` drains what is left and returns."""
        self._commit_requested.set()

    def close(self) -> None:
        """Close the connections to the donor."""
        self._link.close()

    async def run(self) -> None:
        """Receive the range up to its complete critical section, after `load`.

        Raises:
            CommandError: the donor or the local mongod refused, or the range cannot be received.
            BackendError: the local mongod does not answer.
            RemoteProtocolError: the donor broke the protocol.
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
        """Do everything that precedes the first insert, up to registering the range."""
        context, request = self._context, self._request
        donor = await describe_on_donor(self._link)
        await wait_range_free(context.mongod, self._peers.range_deletions, request, donor.uuid)
        await self._steps.finish(RecipientStep.OLD_RANGES_DELETED)
        # Only a donor with this migration under way hands out documents, so a request that arrives late leaves nothing
        # behind. From here on the donor follows its oplog and aborts the migration if options or indexes change, so
        # the collection has to be described again: it may have changed before.
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
        """Make sure that the range holds no local documents but those that the checkpoint covers."""
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

        The donor blocks writes meanwhile, so these run concurrently.
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
        """Apply the next batch of modifications; returns the number of documents in it."""
        modifications = await self._link.modifications()
        count = 0 if modifications.is_empty else await modifier.apply(modifications)
        if modifications.position is not None and not writer.has_postponed:
            self._checkpoints.position = modifications.position
        return count
