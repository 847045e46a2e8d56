"""The resharding operations of this shard: at most one at a time, as donor, recipient or both."""

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from uuid import UUID

import trio
from bson.binary import Binary
from bson.timestamp import Timestamp

from shardwright.daemon.metrics import Metrics
from shardwright.shardd.context.fail_point_names import (
    RESHARDING_PAUSE_AFTER_COMMIT,
    RESHARDING_PAUSE_BEFORE_COMMIT,
    RESHARDING_PAUSE_BEFORE_HOLD,
)
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.metadata.critical_sections import SectionDriver
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.shardd.resharding.donor import ReshardingDonor, section_of
from shardwright.shardd.resharding.local_documents import (
    DONOR,
    RECIPIENT,
    LocalOperation,
    LocalOperations,
    LocalPart,
    no_operation,
)
from shardwright.shardd.resharding.recipient import (
    ReshardingRecipient,
    drop_source,
    hide_indexes,
    remove_remains,
    replace_source,
)
from shardwright.shardd.session_history.migrated_history import HistoryTable
from shardwright.sharding.resharding_operation import ReshardingStatistics, shown_operation
from shardwright.sharding.resharding_participation import DECIDED, DonorState, Participation, RecipientState
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("shardd.resharding")


class ReshardingService:
    """The donors and recipients of this shard's resharding operations.

    Methods that access mongod raise CommandError if it refuses, and BackendError if it does not answer.
    """

    def __init__(self, context: ShardContext, history_table: HistoryTable) -> None:
        self.donors: dict[UUID, ReshardingDonor] = {}
        self.recipients: dict[UUID, ReshardingRecipient] = {}
        self.statistics = ReshardingStatistics()
        self._context = context
        self._history_table = history_table
        self._as_donor = LocalOperations(context.mongod, DONOR)
        self._as_recipient = LocalOperations(context.mongod, RECIPIENT)
        self._term_nursery: trio.Nursery | None = None
        self._aborted: set[UUID] = set()
        self._blocking: defaultdict[UUID, set[trio.CancelScope]] = defaultdict(set)

    @property
    def _nursery(self) -> trio.Nursery:
        if self._term_nursery is None:
            raise CommandError(ErrorCode.NotWritablePrimary, "not primary")
        return self._term_nursery

    async def begin_term(self, term: int, nursery: trio.Nursery) -> None:
        """Resume the former primary's operations; critical sections are held when this returns."""
        self.end_term()
        donors, recipients = await self._as_donor.all(), await self._as_recipient.all()
        for operation in (*donors, *recipients):
            if operation.blocks_operations:
                await section_of(self._context, operation.participation).restore()
        self._term_nursery = nursery
        for operation in donors:
            self._add_donor(operation)
        for operation in recipients:
            self._add_recipient(operation)

    def end_term(self) -> None:
        """Discard the operations, whose tasks were cancelled with their nursery; the next primary resumes them."""
        self._term_nursery = None
        for donor in self.donors.values():
            self._context.namespace(str(donor.part.participation.namespace)).is_resharding = False
        self.donors.clear()
        self.recipients.clear()
        self._aborted.clear()

    # Commands of the coordinator

    async def donate(self, participation: Participation) -> ReshardingDonor:
        """Take part as a donor, if this shard does not yet; NoSuchReshardCollection if the operation has ended."""
        async with self._changing(participation.id):
            if participation.id not in self.donors:
                await self._check_undecided(participation.id)
                operation = LocalOperation(participation, DonorState.PREPARING_TO_DONATE)
                await self._as_donor.save(operation)
                self.statistics.started += participation.id not in self.recipients
                self._add_donor(operation)
            return self.donors[participation.id]

    async def receive(self, participation: Participation) -> ReshardingRecipient:
        """Take part as a recipient, if this shard does not yet; errors as for `donate`."""
        async with self._changing(participation.id):
            if participation.id not in self.recipients:
                await self._check_undecided(participation.id)
                operation = LocalOperation(participation, RecipientState.AWAITING_FETCH_TIMESTAMP)
                await self._as_recipient.save(operation)
                self.statistics.started += participation.id not in self.donors
                self._add_recipient(operation)
            return self.recipients[participation.id]

    async def block_writes(self, participation: Participation) -> Timestamp:
        """Block writes as a donor until commit or abort; see `ReshardingDonor.block_writes`."""
        with self._until_aborted(participation):
            return await self.donor(participation.id).block_writes()

    async def hold(self, participation: Participation) -> None:
        """Block reads and writes until commit or abort; NoSuchReshardCollection if this shard does not take part."""
        await self._context.fail_points.hang_while(RESHARDING_PAUSE_BEFORE_HOLD)
        with self._until_aborted(participation):
            await self._hold(participation)

    async def _hold(self, participation: Participation) -> None:
        async with self._changing(participation.id):
            parts = self._parts(participation.id)
            if not parts:
                raise no_operation(participation.id)
            for part in parts:
                if not part.operation.is_holding:
                    await part.save(is_holding=True)
            await self._block_all(section_of(self._context, participation))

    async def commit(self, participation: Participation) -> None:
        """Replace the former collection by the new one, and unblock operations; needs the catalog."""
        async with self._changing(participation.id):
            if not self._parts(participation.id):
                return
            await self._end_tasks(participation.id)
            section = section_of(self._context, participation)
            await self._block_all(section)
            await self._context.fail_points.hang_while(RESHARDING_PAUSE_BEFORE_COMMIT)
            if self._me in participation.recipients:
                await replace_source(self._context, participation)
                await hide_indexes(self._context, participation, self._hidden_indexes(participation.id))
            else:
                await drop_source(self._context, participation)
            await self._context.fail_points.hang_while(RESHARDING_PAUSE_AFTER_COMMIT)
            await self._finish(participation, section)
            self.statistics.end(is_success=True, is_canceled=False)

    async def abort(self, participation: Participation, *, is_canceled: bool) -> None:
        """Remove all data of the resharding operation, and unblock operations; errors as for `commit`.

        Args:
            is_canceled: whether a user has aborted it.
        """
        if self._parts(participation.id):
            self._end_blocking(participation.id)
        async with self._changing(participation.id):
            if not self._parts(participation.id):
                return
            await self._end_tasks(participation.id)
            await self._finish(participation, section_of(self._context, participation))
            self.statistics.end(is_success=False, is_canceled=is_canceled)

    def donor(self, operation_id: UUID) -> ReshardingDonor:
        """Return the donor of an operation; NotYetInitialized if this shard is not (yet) one."""
        if operation_id not in self.donors:
            raise CommandError(ErrorCode.NotYetInitialized, f"Not a donor of the resharding operation {operation_id}")
        return self.donors[operation_id]

    def recipient_of(self, namespace: str) -> ReshardingRecipient | None:
        """Return the recipient of a collection that is being resharded, if any."""
        found = (each for each in self.recipients.values() if str(each.part.participation.namespace) == namespace)
        return next(found, None)

    def operations(self) -> list[dict[str, Any]]:
        """Return the ``currentOp`` entries of donors and recipients."""
        parts: tuple[tuple[str, Iterable[ReshardingDonor | ReshardingRecipient]], ...] = (
            ("Donor", self.donors.values()),
            ("Recipient", self.recipients.values()),
        )
        return [
            shown_operation(role, each.part.participation, each.times.elapsed, each.shown())
            for role, those in parts
            for each in those
        ]

    async def _block_all(self, section: SectionDriver[NamespaceState]) -> None:
        """Block reads too; secondaries clear their metadata and then wait for the primary."""
        await section.block_writes()
        section.block_reads()
        await self._context.store.count_critical_section(section.state.namespace)

    async def _finish(self, participation: Participation, section: SectionDriver[NamespaceState]) -> None:
        await self._refresh(participation)
        await remove_remains(self._context, participation)
        for part in self._parts(participation.id):
            await part.remove()
        self._context.namespace(str(participation.namespace)).is_resharding = False
        self.donors.pop(participation.id, None)
        self.recipients.pop(participation.id, None)
        self.statistics.held_writes += section.held_writes
        section.leave()

    @contextmanager
    def _until_aborted(self, participation: Participation) -> Iterator[None]:
        """Run a block that waits for writes without a limit, or raise NoSuchReshardCollection after an abort."""
        of_operation = self._blocking[participation.id]
        with trio.CancelScope() as scope:
            of_operation.add(scope)
            if participation.id in self._aborted:
                scope.cancel()
            try:
                yield
            finally:
                of_operation.discard(scope)
                if not of_operation:
                    self._blocking.pop(participation.id, None)
        if participation.id in self._aborted:
            # The abort may have ended before the block noticed.
            section_of(self._context, participation).leave()
            raise no_operation(participation.id)

    def _end_blocking(self, operation_id: UUID) -> None:
        """End all waits for running writes. New writes are admitted after the abort, so some may always be running."""
        self._aborted.add(operation_id)
        for scope in self._blocking.get(operation_id, ()):
            scope.cancel()

    async def _refresh(self, participation: Participation) -> None:
        """Refresh the placement after the decision, and persist it for secondaries."""
        await self._context.config_times.wait_durable()
        state = self._context.namespace(str(participation.namespace))
        state.forget()
        await self._context.refresher.refresh_collection(state)
        await self._context.writer.wait_collection_saved(state.namespace)
        self._context.views.forget()

    async def _end_tasks(self, operation_id: UUID) -> None:
        if operation_id in self.recipients:
            await self.recipients[operation_id].end()
        if operation_id in self.donors:
            self.donors[operation_id].close()

    async def _check_undecided(self, operation_id: UUID) -> None:
        """Refuse a delayed command for a decided operation, which must not start anything (NoSuchReshardCollection)."""
        found = await (await self._context.catalog()).find(
            "reshardingOperations", {"_id": Binary.from_uuid(operation_id), "state": {"$nin": sorted(DECIDED)}}
        )
        if not found:
            raise no_operation(operation_id)

    def _add_donor(self, operation: LocalOperation) -> None:
        section = section_of(self._context, operation.participation)
        part = LocalPart(self._as_donor, operation)
        self._context.namespace(str(operation.participation.namespace)).is_resharding = True
        self.donors[operation.participation.id] = ReshardingDonor(self._context, part, section, self._nursery)

    def _add_recipient(self, operation: LocalOperation) -> None:
        part = LocalPart(self._as_recipient, operation)
        recipient = ReshardingRecipient(self._context, part, self._history_table, self.statistics)
        self.recipients[operation.participation.id] = recipient
        self._nursery.start_soon(recipient.run)

    def _hidden_indexes(self, operation_id: UUID) -> tuple[str, ...]:
        recipient = self.recipients.get(operation_id)
        return () if recipient is None else recipient.part.operation.hidden_indexes

    def _parts(self, operation_id: UUID) -> list[LocalPart]:
        found = (self.donors.get(operation_id), self.recipients.get(operation_id))
        return [each.part for each in found if each is not None]

    @asynccontextmanager
    async def _changing(self, operation_id: UUID) -> AsyncIterator[None]:
        """Serialize the coordinator's commands for one operation."""
        assert self._nursery is not None
        async with self._context.ddl_locks.hold(f"resharding {operation_id}"):
            yield

    @property
    def _me(self) -> str:
        return self._context.require_identity().shard_name


def export_metrics(metrics: Metrics, statistics: ReshardingStatistics) -> None:
    """Export the totals of a shard daemon."""
    metrics.observed_counter(
        "resharding_documents_copied",
        "Documents that this shard has received by resharding",
        lambda: statistics.documents_copied,
    )
    metrics.observed_counter(
        "resharding_bytes_copied",
        "Bytes of the documents that this shard has received by resharding",
        lambda: statistics.bytes_copied,
    )
    metrics.observed_counter(
        "resharding_changes_applied",
        "Changes that this shard has applied to collections that were being resharded",
        lambda: statistics.changes_applied,
    )
    metrics.observed_counter(
        "resharding_held_writes",
        "Writes that have waited on this shard for a resharding to end",
        lambda: statistics.held_writes,
    )
