"""Running donations: from the request, or from what a former primary has left, to their completion."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Final
from uuid import UUID, uuid4

import trio
from bson.binary import Binary

from shardwright.daemon.logs import get_logger
from shardwright.shardd.cluster.network import as_command_error, is_transient
from shardwright.shardd.context.shard import Shard
from shardwright.shardd.migration.documents import MigrationCoordinatorDocument, new_session_id
from shardwright.shardd.migration.donor.attempts import MigrationAttempts
from shardwright.shardd.migration.donor.completion import Completion, decide
from shardwright.shardd.migration.donor.critical_section import DonorCriticalSection
from shardwright.shardd.migration.donor.migration import DonorMigration, Outcome
from shardwright.shardd.migration.donor.outcome import wait_outcome
from shardwright.shardd.migration.donor.plan import MovePlan, check_size, plan_move
from shardwright.shardd.migration.donor.request import MoveRangeRequest
from shardwright.shardd.migration.donor.steps import Steps
from shardwright.shardd.migration.donor.store import DonorStore
from shardwright.shardd.migration.registry import Donation, DonationKey
from shardwright.shardd.orphans.range_deletion_task import CLEAN_DELAYED, CLEAN_NOW, RangeDeletionTask
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError

logger = get_logger("shardd.migration.donor")

_NO_USER: Final = sha256(b"").digest()
"""The user part of the id of a session that belongs to no user."""

_RETRY_SECONDS: Final = 0.5


class Donations:
    """The donations of one term as primary.

    Args:
        shard: this shard.
        nursery: of the term.
    """

    def __init__(self, shard: Shard, nursery: trio.Nursery) -> None:
        self._shard = shard
        self._nursery = nursery
        self._store = DonorStore(shard.mongod)

    def start(self, request: MoveRangeRequest) -> Donation:
        """Begin to give a range, or join those who wait for the same.

        Raises:
            CommandError: ConflictingOperationInProgress, another migration is under way.
        """
        registry = self._shard.migrations.registry
        donation = registry.join_donation(request.key)
        if donation is None:
            donation = registry.begin_donation(request.key)
            self._nursery.start_soon(self._execute, donation, partial(self._donate, donation, request))
        return donation

    async def load(self) -> list[tuple[MigrationCoordinatorDocument, MigrationAttempts | None]]:
        """What the last primary has left unfinished.

        Raises:
            CommandError: it could not be read.
            BackendError: mongod does not answer.
        """
        return await self._store.load()

    async def recover(
        self, unfinished: Sequence[tuple[MigrationCoordinatorDocument, MigrationAttempts | None]]
    ) -> None:
        """Go on with what `load` has found; critical sections are on when this returns."""
        for coordinator, attempts in unfinished:
            logger.info(
                "Taking over a migration",
                namespace=coordinator.namespace,
                migration=str(coordinator.id),
                session=coordinator.session_id,
                decision=coordinator.decision,
            )
            if coordinator.decision is not None:
                self._nursery.start_soon(self._completion(coordinator, attempts).run_until_done)
                continue
            donation = self._shard.migrations.registry.begin_donation(_key_of(coordinator, attempts))
            donation.migration_id = coordinator.id
            if attempts is None or attempts.has_entered_critical_section:
                section = DonorCriticalSection(self._shard, coordinator)
                await section.put_back()
                self._nursery.start_soon(
                    self._execute, donation, partial(self._find_out, coordinator, attempts, section)
                )
            else:
                self._nursery.start_soon(
                    self._execute, donation, partial(self._resume, donation, coordinator, attempts)
                )

    async def _execute(self, donation: Donation, work: Callable[[], Awaitable[None]]) -> None:
        """Run one donation; what comes of it is told to those who wait for it."""
        error: CommandError | None = None
        try:
            async with self._shard.ddl_locks.chunk_change(donation.key.namespace):
                await work()
        except (CommandError, BackendError) as failure:
            error = as_command_error(failure)
        except Exception as failure:
            logger.exception("A migration failed for a reason that is our fault", migration=str(donation.migration_id))
            error = CommandError(ErrorCode.InternalError, f"{type(failure).__name__}: {failure}")
            self._nursery.start_soon(self._salvage, donation.migration_id)
        except BaseException:
            error = CommandError(
                ErrorCode.InterruptedDueToReplStateChange, "operation was interrupted because the primary stepped down"
            )
            raise
        finally:
            self._shard.migrations.donor = None
            self._shard.migrations.registry.end_donation(error)

    # From the beginning

    async def _donate(self, donation: Donation, request: MoveRangeRequest) -> None:
        steps = Steps(self._shard, donation, request)
        try:
            with donation.abortable():
                await steps.finish(1)
                plan = await plan_move(self._shard, request)
                if plan is None:
                    return
                steps.set_bounds(plan.range.min, plan.range.max)
                documents = await check_size(self._shard, plan)
        except CommandError as error:
            await steps.log_times(error)
            raise
        coordinator = self._new_coordinator(plan)
        donation.migration_id = coordinator.id
        attempts = MigrationAttempts(coordinator.id, request)
        await steps.log("start")
        # A document without a coordinator is of no consequence; a coordinator has all that it needs to be aborted.
        await self._store.save_attempts(attempts)
        try:
            await self._store.save_coordinator(coordinator)
            await self._shard.range_deletions.register(await self._range_deletion(coordinator, request))
            with donation.abortable():
                await steps.finish(2, session=coordinator.session_id)
        except (CommandError, BackendError) as error:
            await self._finish(coordinator, attempts, steps, Outcome(as_command_error(error)))
            raise
        await self._run(donation, plan, coordinator, attempts, steps, documents)

    def _new_coordinator(self, plan: MovePlan) -> MigrationCoordinatorDocument:
        donor, recipient = self._shard.require_identity().shard_name, plan.request.recipient
        return MigrationCoordinatorDocument(
            id=uuid4(),
            session_id=new_session_id(donor, recipient),
            lsid={"id": Binary.from_uuid(uuid4()), "uid": _NO_USER},
            txn_number=0,
            namespace=str(plan.request.namespace),
            collection_uuid=plan.table.collection.uuid,
            donor=donor,
            recipient=recipient,
            range=plan.key_range,
            chunk_version=plan.chunk_version,
        )

    async def _range_deletion(
        self, coordinator: MigrationCoordinatorDocument, request: MoveRangeRequest
    ) -> RangeDeletionTask:
        pong = await self._shard.mongod.command("admin", {"ping": 1})
        return RangeDeletionTask(
            id=coordinator.id,
            namespace=coordinator.namespace,
            collection_uuid=coordinator.collection_uuid,
            donor=coordinator.donor,
            range=coordinator.range,
            pending=True,
            when=CLEAN_NOW if request.wait_for_delete else CLEAN_DELAYED,
            timestamp=pong["operationTime"],
        )

    # From where a former primary stopped

    async def _resume(
        self, donation: Donation, coordinator: MigrationCoordinatorDocument, attempts: MigrationAttempts
    ) -> None:
        """Go on with a migration that has not come to its critical section."""
        moved = coordinator.range
        request = replace(attempts.request, min=moved.min, max=moved.max)
        steps = Steps(self._shard, donation, request)
        try:
            plan = await self._plan_again(request, coordinator)
            # Chunks may have been given new versions since; a commit is for the version that is persisted.
            coordinator = replace(coordinator, chunk_version=plan.chunk_version)
            await self._store.save_coordinator(coordinator)
            await self._shard.range_deletions.register(await self._range_deletion(coordinator, request))
            estimate = await plan.new_source(self._shard, coordinator.session_id).estimate()
        except (CommandError, BackendError) as error:
            await self._finish(coordinator, attempts, steps, Outcome(as_command_error(error)))
            raise
        await self._run(donation, plan, coordinator, attempts, steps, estimate.documents)

    async def _plan_again(self, request: MoveRangeRequest, coordinator: MigrationCoordinatorDocument) -> MovePlan:
        """Check that the migration is still possible; that servers are away delays it, and does not end it.

        Raises:
            CommandError: it is not.
        """
        while True:
            try:
                plan = await plan_move(self._shard, request)
            except CommandError as error:
                if not is_transient(error):
                    raise
                logger.warning("A migration has to wait", migration=str(coordinator.id), error=str(error))
            else:
                if plan is not None and plan.table.collection.uuid == coordinator.collection_uuid:
                    return plan
                raise CommandError(
                    ErrorCode.ConflictingOperationInProgress, "the collection changed while its chunk was to be moved"
                )
            await trio.sleep(_RETRY_SECONDS)

    async def _find_out(
        self,
        coordinator: MigrationCoordinatorDocument,
        attempts: MigrationAttempts | None,
        section: DonorCriticalSection,
    ) -> None:
        """Let operations wait until the config servers have said what became of a migration."""
        is_committed = await wait_outcome(self._shard, coordinator)
        await section.refresh()
        section.leave()
        decided = await decide(self._shard, coordinator, is_committed=is_committed)
        await self._completion(decided, attempts).run(self._nursery)
        if not is_committed:
            raise CommandError(
                ErrorCode.InterruptedDueToReplStateChange, "the primary of the donor changed before the commit"
            )

    async def _salvage(self, migration_id: UUID | None) -> None:
        """End a migration in which this program has failed, as if another primary had taken over."""
        for coordinator, attempts in await self._store.load():
            if coordinator.id == migration_id and coordinator.decision is None:
                section = DonorCriticalSection(self._shard, coordinator)
                await section.put_back()
                with suppress(CommandError):  # that it was aborted
                    await self._find_out(coordinator, attempts, section)

    # To the end

    async def _run(
        self,
        donation: Donation,
        plan: MovePlan,
        coordinator: MigrationCoordinatorDocument,
        attempts: MigrationAttempts,
        steps: Steps,
        documents: int,
    ) -> None:
        migration = DonorMigration(self._shard, plan, coordinator, attempts, steps, self._nursery)
        migration.documents_estimated = documents
        self._shard.migrations.donor = migration
        donation.set_on_abort(migration.abort)
        outcome = await migration.run()
        self._shard.migrations.donor_metrics.ended(migration, is_committed=outcome.error is None)
        await self._finish(coordinator, migration.attempts, steps, outcome)

    async def _finish(
        self, coordinator: MigrationCoordinatorDocument, attempts: MigrationAttempts, steps: Steps, outcome: Outcome
    ) -> None:
        """Persist what has become of it, and clean up.

        Raises:
            CommandError: why it was aborted, if it was.
        """
        decided = await decide(self._shard, coordinator, is_committed=outcome.error is None)
        if outcome.error is None:
            await self._count_orphans(coordinator.id, int(outcome.counts.get("cloned", 0)))
            await steps.log("commit", counts=dict(outcome.counts))
        else:
            await steps.log("error")
        await self._completion(decided, attempts).run(self._nursery)
        await steps.log_times(outcome.error)
        if outcome.error is not None:
            raise outcome.error

    async def _count_orphans(self, migration_id: UUID, count: int) -> None:
        """Tell how many documents stay behind; the number is for people, and nothing depends on it."""
        try:
            await self._shard.range_deletions.add_orphan_count(migration_id, count)
        except (CommandError, BackendError) as error:
            logger.warning("Could not count orphans", migration=str(migration_id), error=str(error))

    def _completion(self, coordinator: MigrationCoordinatorDocument, attempts: MigrationAttempts | None) -> Completion:
        last = coordinator.session_id
        if attempts is not None and attempts.attempts:
            last = attempts.attempts[-1].session_id
        waits = attempts is not None and attempts.request.wait_for_delete
        return Completion(self._shard, coordinator, last, waits_for_delete=waits)


def _key_of(coordinator: MigrationCoordinatorDocument, attempts: MigrationAttempts | None) -> DonationKey:
    if attempts is not None:
        return attempts.request.key
    moved = coordinator.range
    return DonationKey(coordinator.namespace, moved.min, moved.max, coordinator.recipient)
