"""Migrations from this shard, and their metrics."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from uuid import UUID

import trio

from shardwright.daemon.backoff import Backoff
from shardwright.daemon.metrics import Metrics
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.exchange.remote_sets import as_command_error, is_transient
from shardwright.shardd.migration.active_migrations import (
    ActiveDonorMigration,
    ActiveMigrations,
    DonorMigrationKey,
    MigrationCoordinatorDocument,
    MigrationParameters,
)
from shardwright.shardd.migration.donor.commit import Completion, DonorCriticalSection, decide, wait_outcome
from shardwright.shardd.migration.donor.donor_state import DonorStep, DonorStore, MigrationAttempts, Steps
from shardwright.shardd.migration.donor.migration import DonorMigration, Outcome
from shardwright.shardd.migration.donor.move_range import (
    MovePlan,
    MoveRangeRequest,
    check_size,
    new_coordinator,
    new_range_deletion,
    plan_move,
)
from shardwright.shardd.range_deleter.range_deleter_service import RangeDeletions
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger


class DonorMetrics:
    """Counters of migrations from this shard, and gauges of the active one."""

    def __init__(self, metrics: Metrics, current: Callable[[], DonorMigration | None]) -> None:
        self._ended = metrics.labelled_counter(
            "donor_migrations", "Finished migrations from this shard", "outcome", ("committed", "aborted")
        )
        self._documents = metrics.counter("donor_documents_cloned", "Documents cloned to other shards")
        self._bytes = metrics.counter("donor_bytes_cloned", "Bytes of documents cloned to other shards")
        self._blocked_seconds = metrics.counter(
            "donor_critical_section_seconds",
            "Time in critical sections of migrations from this shard, with all attempts",
        )
        self._last_blocked_seconds = 0.0

        def read(value: Callable[[DonorMigration], float]) -> Callable[[], float]:
            def read_now() -> float:
                migration = current()
                return 0 if migration is None else value(migration)

            return read_now

        gauge = metrics.gauge
        gauge(
            "donor_migration_active",
            "1 while this shard is the donor in a migration, else 0",
            read(lambda migration: 1),
        )
        gauge(
            "donor_migration_step",
            "Number of the last finished step of the current migration from this shard",
            read(lambda migration: migration.steps.done),
        )
        gauge(
            "donor_migration_documents_estimated",
            "Estimated number of documents in the current migration from this shard",
            read(lambda migration: migration.documents_estimated),
        )
        gauge(
            "donor_migration_documents_cloned",
            "Documents cloned by the current migration from this shard",
            read(lambda migration: migration.source.documents_cloned if migration.source else 0),
        )
        gauge(
            "donor_migration_bytes_cloned",
            "Bytes cloned by the current migration from this shard",
            read(lambda migration: migration.source.bytes_cloned if migration.source else 0),
        )
        gauge(
            "donor_migration_documents_queued",
            "Changed documents waiting to be transferred to the recipient",
            read(lambda migration: migration.source.queued_ids if migration.source else 0),
        )
        gauge(
            "donor_migration_queued_bytes",
            "Memory used by the ids of changed documents waiting to be transferred to the recipient",
            read(lambda migration: migration.source.queued_bytes if migration.source else 0),
        )
        gauge(
            "donor_last_critical_section_seconds",
            "Time in the critical section of the last migration from this shard, with all attempts",
            lambda: self._last_blocked_seconds,
        )

    def ended(self, migration: DonorMigration, *, is_committed: bool) -> None:
        """Count a migration that has ended."""
        self._ended.add("committed" if is_committed else "aborted")
        counts = {} if migration.status is None else migration.status.counts
        self._documents.add(int(counts.get("cloned", 0)))
        self._bytes.add(int(counts.get("clonedBytes", 0)))
        self._last_blocked_seconds = migration.critical_section_seconds
        self._blocked_seconds.add(self._last_blocked_seconds)


logger = get_logger("shardd.migration.donor")


class DonorService:
    """The migrations in which this shard is the donor.

    Args:
        wait_for_commits: waits for cross-shard commits whose session history moves with the range.

    Attributes:
        migration: the active one, once it has been checked and persisted.
    """

    def __init__(
        self,
        context: ShardContext,
        range_deletions: RangeDeletions,
        active: ActiveMigrations,
        parameters: MigrationParameters,
        wait_for_commits: Callable[[], Awaitable[None]],
    ) -> None:
        self.migration: DonorMigration | None = None
        self._context = context
        self._range_deletions = range_deletions
        self._active = active
        self._parameters = parameters
        self._wait_for_commits = wait_for_commits
        self._store = DonorStore(context.mongod)
        self._metrics = DonorMetrics(context.metrics, lambda: self.migration)
        self._term_nursery: trio.Nursery | None = None

    @property
    def _nursery(self) -> trio.Nursery:
        """The term's nursery; everything here runs within a term."""
        assert self._term_nursery is not None
        return self._term_nursery

    def start(self, request: MoveRangeRequest) -> ActiveDonorMigration:
        """Begin to move a range, or join the same migration if it is active.

        Raises ConflictingOperationInProgress if another migration is active, or NotWritablePrimary.
        """
        if self._term_nursery is None:
            raise CommandError(ErrorCode.NotWritablePrimary, "not primary")
        active = self._active.join_donor_migration(request.key)
        if active is None:
            active = self._active.begin_donor_migration(request.key)
            self._nursery.start_soon(self._execute, active, partial(self._move, active, request))
        return active

    async def load(self) -> list[tuple[MigrationCoordinatorDocument, MigrationAttempts | None]]:
        """Load the migrations that the last primary left unfinished."""
        return await self._store.load()

    async def recover(
        self,
        unfinished: Sequence[tuple[MigrationCoordinatorDocument, MigrationAttempts | None]],
        nursery: trio.Nursery,
    ) -> None:
        """Resume or complete the migrations that `load` found; their critical sections are in effect when this returns.

        Args:
            unfinished: the result of `load`.
        """
        self._term_nursery = nursery
        for coordinator, attempts in unfinished:
            logger.info(
                "Taking over a migration",
                namespace=coordinator.namespace,
                migration=str(coordinator.id),
                session=coordinator.session_id,
                decision=coordinator.decision,
            )
            if coordinator.decision is not None:
                nursery.start_soon(self._completion(coordinator, attempts).run_until_done)
                continue
            active = self._active.begin_donor_migration(_key_of(coordinator, attempts))
            active.migration_id = coordinator.id
            if attempts is None or attempts.has_entered_critical_section:
                section = DonorCriticalSection(self._context, coordinator)
                await section.restore()
                work = partial(self._recover_outcome, coordinator, attempts, section)
            else:
                work = partial(self._resume, active, coordinator, attempts)
            nursery.start_soon(self._execute, active, work)

    def end_term(self) -> None:
        """Refuse requests from now on. Migrations were cancelled with their nursery; the next primary resumes them."""
        self._term_nursery = None

    async def _execute(self, active: ActiveDonorMigration, work: Callable[[], Awaitable[None]]) -> None:
        """Run one migration, and report its result to the requests that wait for it."""
        error: CommandError | None = None
        try:
            async with self._context.ddl_locks.chunk_change(active.key.namespace):
                await work()
        except (CommandError, BackendError) as failure:
            error = as_command_error(failure)
        except Exception as failure:
            logger.exception("Internal error in a migration", migration=str(active.migration_id))
            error = CommandError(ErrorCode.InternalError, f"{type(failure).__name__}: {failure}")
            self._nursery.start_soon(self._salvage, active.migration_id)
        except BaseException:
            error = CommandError(
                ErrorCode.InterruptedDueToReplStateChange, "operation was interrupted because the primary stepped down"
            )
            raise
        finally:
            self.migration = None
            self._active.end_donor_migration(error)

    # From the beginning

    async def _move(self, active: ActiveDonorMigration, request: MoveRangeRequest) -> None:
        steps = Steps(self._context, active, request)
        try:
            with active.abortable():
                await steps.finish(DonorStep.REQUEST_READ)
                plan = await plan_move(self._context, request)
                if plan is None:
                    return
                steps.set_bounds(plan.range.min, plan.range.max)
                documents = await check_size(self._context, plan)
        except CommandError as error:
            await steps.log_times(error)
            raise
        coordinator = new_coordinator(self._context.require_identity().shard_name, plan)
        active.migration_id = coordinator.id
        attempts = MigrationAttempts(coordinator.id, request)
        await steps.log("start")
        try:
            # The coordinator first: it has all that an abort needs, and attempts without one would never be removed.
            await self._store.save_coordinator(coordinator)
            await self._store.save_attempts(attempts)
            await self._range_deletions.register(await new_range_deletion(self._context.mongod, coordinator, request))
            with active.abortable():
                await steps.finish(
                    DonorStep.CHECKED_AND_PERSISTED, migration=str(coordinator.id), session=coordinator.session_id
                )
        except (CommandError, BackendError) as error:
            await self._finish(coordinator, attempts, steps, Outcome(as_command_error(error)))
            raise
        await self._run(active, plan, coordinator, attempts, steps, documents)

    # After a change of primary

    async def _resume(
        self, active: ActiveDonorMigration, coordinator: MigrationCoordinatorDocument, attempts: MigrationAttempts
    ) -> None:
        """Resume a migration that has not reached its critical section."""
        moved = coordinator.range
        request = replace(attempts.request, min=moved.min, max=moved.max)
        steps = Steps(self._context, active, request)
        try:
            plan = await self._plan_again(request, coordinator)
            # Chunk versions may have changed since, and the commit is checked against the persisted one.
            coordinator = replace(coordinator, chunk_version=plan.chunk_version)
            await self._store.save_coordinator(coordinator)
            await self._range_deletions.register(await new_range_deletion(self._context.mongod, coordinator, request))
            estimate = await plan.new_source(self._context, coordinator.session_id).estimate()
        except (CommandError, BackendError) as error:
            await self._finish(coordinator, attempts, steps, Outcome(as_command_error(error)))
            raise
        await self._run(active, plan, coordinator, attempts, steps, estimate.documents)

    async def _plan_again(self, request: MoveRangeRequest, coordinator: MigrationCoordinatorDocument) -> MovePlan:
        """Check that the migration is still possible, with retries while servers are unavailable."""
        backoff = Backoff(first_seconds=0.5, seconds_max=5.0)
        while True:
            try:
                plan = await plan_move(self._context, request)
            except CommandError as error:
                if not is_transient(error):
                    raise
                logger.warning("Could not resume a migration yet", migration=str(coordinator.id), error=str(error))
            else:
                if plan is not None and plan.table.collection.uuid == coordinator.collection_uuid:
                    return plan
                raise CommandError(
                    ErrorCode.ConflictingOperationInProgress, "the collection changed while its chunk was to be moved"
                )
            await backoff.pause()

    async def _recover_outcome(
        self,
        coordinator: MigrationCoordinatorDocument,
        attempts: MigrationAttempts | None,
        section: DonorCriticalSection,
    ) -> None:
        """Block operations until the config servers have reported the outcome of a migration."""
        is_committed = await wait_outcome(self._context, coordinator)
        await section.refresh()
        section.leave()
        decided = await decide(self._context, coordinator, is_committed=is_committed)
        await self._completion(decided, attempts).run(self._nursery)
        if not is_committed:
            raise CommandError(
                ErrorCode.InterruptedDueToReplStateChange, "the primary of the donor changed before the commit"
            )

    async def _salvage(self, migration_id: UUID | None) -> None:
        """End a migration after an internal error, as a new primary would; further errors of any kind delay this."""
        backoff = Backoff(first_seconds=0.1, seconds_max=5.0)
        while True:
            try:
                await self._end_unfinished(migration_id)
            except (CommandError, BackendError) as error:
                logger.warning(
                    "Could not end a migration after an internal error", migration=str(migration_id), error=str(error)
                )
            except Exception:
                logger.exception("Internal error while ending a migration", migration=str(migration_id))
            else:
                return
            await backoff.pause()

    async def _end_unfinished(self, migration_id: UUID | None) -> None:
        for coordinator, attempts in await self._store.load():
            if coordinator.id != migration_id:
                continue
            if coordinator.decision is not None:
                await self._completion(coordinator, attempts).run_until_done()
                continue
            section = DonorCriticalSection(self._context, coordinator)
            await section.close()
            with suppress(CommandError):  # raised if it was aborted
                await self._recover_outcome(coordinator, attempts, section)

    # To the end

    async def _run(
        self,
        active: ActiveDonorMigration,
        plan: MovePlan,
        coordinator: MigrationCoordinatorDocument,
        attempts: MigrationAttempts,
        steps: Steps,
        documents: int,
    ) -> None:
        migration = DonorMigration(
            self._context, self._parameters, plan, coordinator, attempts, steps, self._nursery, self._wait_for_commits
        )
        migration.documents_estimated = documents
        self.migration = migration
        active.set_on_abort(migration.abort)
        outcome = await migration.run()
        self._metrics.ended(migration, is_committed=outcome.error is None)
        await self._finish(coordinator, migration.attempts, steps, outcome)

    async def _finish(
        self, coordinator: MigrationCoordinatorDocument, attempts: MigrationAttempts, steps: Steps, outcome: Outcome
    ) -> None:
        """Persist the outcome and complete the migration; after an abort, raise its error."""
        decided = await decide(self._context, coordinator, is_committed=outcome.error is None)
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
        """Record the number of orphans left behind. The number is informational; nothing depends on it."""
        try:
            await self._range_deletions.add_orphan_count(migration_id, count)
        except (CommandError, BackendError) as error:
            logger.warning("Could not count orphans", migration=str(migration_id), error=str(error))

    def _completion(self, coordinator: MigrationCoordinatorDocument, attempts: MigrationAttempts | None) -> Completion:
        last = coordinator.session_id
        if attempts is not None and attempts.attempts:
            last = attempts.attempts[-1].session_id
        waits = attempts is not None and attempts.request.wait_for_delete
        return Completion(self._context, self._range_deletions, coordinator, last, waits_for_delete=waits)


def _key_of(coordinator: MigrationCoordinatorDocument, attempts: MigrationAttempts | None) -> DonorMigrationKey:
    if attempts is not None:
        return attempts.request.key
    moved = coordinator.range
    return DonorMigrationKey(coordinator.namespace, moved.min, moved.max, coordinator.recipient)
