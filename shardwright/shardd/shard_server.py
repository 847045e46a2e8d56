"""Assembly of the shard daemon: the context first, then each component after its dependencies.

`ShardServer` owns the components. `Terms` begins and ends the ones that exist only while this member is primary; each
begins after its dependencies.

**Feature version** (`FeatureVersion`). The daemon follows the cluster's version (`sharding.feature_version`). The
shard's own record is read first, because it reveals unfinished work of a newer release even when no config server
answers.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, Protocol

import trio

from shardwright.config_servers.catalog_client import follow_feature_version
from shardwright.daemon.backoff import Backoff, until_done
from shardwright.daemon.metrics import Metrics
from shardwright.daemon.process_environment import check_fitness
from shardwright.daemon.sidecar.sidecar import SidecarOptions
from shardwright.daemon.sidecar.term_fence import TermFence
from shardwright.shardd.commands.command import ServerParameters, ShardComponents
from shardwright.shardd.context.shard_context import ShardContext, handshake
from shardwright.shardd.ddl.participants import BlockedCollections, RenameParticipants
from shardwright.shardd.ddl.service import CoordinatorService
from shardwright.shardd.living_sessions import LivingSessions
from shardwright.shardd.local_mongod.reserved_sessions import ReservedSessions
from shardwright.shardd.metadata.refresh import CacheWatch
from shardwright.shardd.migration.migrations import Migrations
from shardwright.shardd.operations.key_changing_request import UpdatePreviews
from shardwright.shardd.operations.waiting_operations import WaitingOperations
from shardwright.shardd.orphans.fenced_cursors import FencedCursors
from shardwright.shardd.orphans.open_cursors import InheritedCursors
from shardwright.shardd.range_deleter.range_deleter_service import RangeDeletions
from shardwright.shardd.resharding.service import ReshardingService
from shardwright.shardd.session_history.migrated_history import HistoryTable
from shardwright.shardd.splitting.auto_splitter import AutoSplitter
from shardwright.shardd.splitting.chunk_splitter import ChunkSplitter
from shardwright.shardd.splitting.key_statistics import KeyStatistics
from shardwright.shardd.transactions.session_keys import RouterSessions
from shardwright.shardd.transactions.transactions import Transactions
from shardwright.shardd.two_phase_commit.coordinators import TransactionCoordinators
from shardwright.sharding.feature_version import (
    MALFORMED,
    OLDEST,
    RECORDED_BY_SHARDS,
    query,
    recording,
    refusal,
    version_of,
)
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.transport.client import Connection
from shardwright.wire.transport.transport import Transport

logger = get_logger("shardd.terms")


class TermComponent(Protocol):
    """A component that runs from step-up to step-down."""

    async def begin_term(self, term: int, nursery: trio.Nursery) -> None:
        """Take over from the previous primary. Called again in the same term only after a failure.

        Args:
            nursery: the term's nursery, which is cancelled at step-down.

        Raises:
            CommandError: mongod refuses.
            BackendError: mongod does not answer.
        """

    def end_term(self) -> None:
        """End the term, after its nursery has been cancelled. Also called if `begin_term` was never reached."""


class TermTask:
    """A task that runs during each term."""

    def __init__(self, run: Callable[[], Awaitable[None]]) -> None:
        self._run = run

    async def begin_term(self, term: int, nursery: trio.Nursery) -> None:
        """Start the task."""
        nursery.start_soon(self._run)

    def end_term(self) -> None:
        """Do nothing: the nursery has cancelled the task."""


class TermRecovery:
    """A step at the beginning of each term that needs no end."""

    def __init__(self, recover: Callable[[int], Awaitable[None]]) -> None:
        self._recover = recover

    async def begin_term(self, term: int, nursery: trio.Nursery) -> None:
        """Run the step and propagate its errors."""
        await self._recover(term)

    def end_term(self) -> None:
        """Do nothing."""


class FencedWrites:
    """Numbering of each term's writes to ``config``, so that mongod refuses them in a later term."""

    def __init__(self, fence: TermFence) -> None:
        self._fence = fence

    async def begin_term(self, term: int, nursery: trio.Nursery) -> None:
        """Make mongod refuse writes of earlier terms; errors as for `TermFence.begin`."""
        await self._fence.begin(term)
        nursery.start_soon(self._fence.keep)

    def end_term(self) -> None:
        """Hold back writes until the next term begins."""
        self._fence.end()


class Terms:
    """The terms of a shard daemon, as `RoleHooks`. Components begin in the given order and end in reverse."""

    def __init__(self, context: ShardContext, components: Sequence[TermComponent]) -> None:
        self._context = context
        self._components = components

    async def on_step_up(self, term: int, nursery: trio.Nursery) -> None:
        """Begin a term from the persisted state alone, and resume the unfinished work of former primaries."""
        self._context.forget_metadata()
        self._context.sidecar.certainty.settle(term)
        await self._until_done(term, self._context.wait_identified)
        for component in self._components:
            await self._until_done(term, partial(component.begin_term, term, nursery))

    def on_step_down(self) -> None:
        """End the term and clear the filtering metadata, which the next primary may change."""
        for component in reversed(self._components):
            component.end_term()
        self._context.forget_metadata()

    async def _until_done(self, term: int, step: Callable[[], Awaitable[None]]) -> None:
        """Retry a step until it succeeds or the term ends."""
        await until_done(step, Backoff(first_seconds=0.2, seconds_max=1.0), partial(_log_failure, term))


def _log_failure(term: int, error: BackendError | CommandError, retry_seconds: float) -> None:
    logger.warning(
        "Could not recover the operations of earlier terms",
        term=term,
        error=str(error),
        retry_seconds=round(retry_seconds, 3),
    )


class FeatureVersion:
    """The feature version recorded on this shard.

    Attributes:
        recorded: the version. The daemon may use features of this version and earlier ones.
    """

    def __init__(self, context: ShardContext) -> None:
        self._context = context
        self.recorded = OLDEST

    async def run(self) -> None:
        """Follow the cluster's version once this is a shard, until cancelled or the version is unsupported.

        An unsupported version raises UnfitClusterError, here and in `check_record`.
        """
        await self._until_done(self._read_record)
        await self._until_done(self._context.wait_identified)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow_feature_version, await self._context.catalog(), partial(self._adopt, nursery))

    async def check_record(self, _term: int) -> None:
        """Read the shard's own record before the work of a term begins."""
        await self._read(query("local"))

    async def _read_record(self) -> None:
        await self._read({**query(), "$readPreference": {"mode": "nearest"}})

    async def _read(self, question: Mapping[str, Any]) -> None:
        found = (await self._context.mongod.command("admin", question))["cursor"]["firstBatch"]
        self.recorded = version_of(found[0] if found else None)
        check_fitness(refusal(self.recorded))

    def _adopt(self, nursery: trio.Nursery, version: int) -> None:
        check_fitness(refusal(version))
        if version >= RECORDED_BY_SHARDS and version > self.recorded and self._context.is_primary:
            nursery.start_soon(self._record, version)

    async def _record(self, version: int) -> None:
        try:
            await self._context.mongod.write("admin", recording(version))
        except (BackendError, CommandError) as error:
            # The next read of the version repeats this if the shard daemon is still primary.
            logger.warning("Could not record the feature version", feature_version=version, error=str(error))
            return
        self.recorded = version
        logger.info("Recorded the feature version of the cluster", feature_version=version)

    async def _until_done(self, step: Callable[[], Awaitable[object]]) -> None:
        await until_done(step, Backoff(first_seconds=0.1, seconds_max=1.0), _note_failure)


def _note_failure(error: BackendError | CommandError, retry_seconds: float) -> None:
    log = logger.warning if isinstance(error, CommandError) and error.code in MALFORMED else logger.debug
    log("Could not read the feature version", error=str(error), retry_seconds=round(retry_seconds, 3))


class ShardServer:
    """One shard daemon.

    Args:
        nursery: for tasks that live as long as the daemon.
        on_mongod_lost: see `Sidecar`.
        more_extensions: see `ShardContext`.

    Attributes:
        fenced_cursors: hides incoming ranges from open cursors.
        inherited_cursors: ends the cursors of an earlier process.
        history_table: retryable writes executed by former owners of ranges.
        range_deletions: ranges whose documents are, or may become, orphans.
        transaction_coordinators: two-phase commits coordinated here.
        router_sessions: writes that routers sent in their own sessions.
        living_sessions: refreshes sessions that are used only on other shards.
    """

    def __init__(
        self,
        options: SidecarOptions,
        transport: Transport,
        metrics: Metrics,
        nursery: trio.Nursery,
        on_mongod_lost: Callable[[], None],
        more_extensions: Sequence[str] = (),
    ) -> None:
        self.context = context = ShardContext(options, transport, metrics, nursery, on_mongod_lost, more_extensions)
        mongod = context.mongod
        fence = TermFence(mongod)
        mongod.number_writes_by(fence)
        sessions = ReservedSessions(mongod)
        self.fenced_cursors = FencedCursors(mongod, context.open_cursors)
        self.inherited_cursors = InheritedCursors(mongod)
        self.previews = UpdatePreviews(mongod)
        self.transactions = Transactions(context)
        context.open_cursors.is_transaction_open = self.transactions.is_open
        self.history_table = HistoryTable(mongod)
        self.living_sessions = LivingSessions(context, self.history_table)
        self.range_deletions = RangeDeletions(context, sessions, self.fenced_cursors, self.living_sessions.keep)
        self.transaction_coordinators = TransactionCoordinators(context, self.transactions.open)
        self.migrations = Migrations(
            context,
            self.range_deletions,
            sessions,
            self.history_table,
            self.transaction_coordinators.wait_for_retryable_writes,
        )
        self.auto_splitter = AutoSplitter(context, ChunkSplitter(context), Random())
        self.key_statistics = KeyStatistics(context, Random())
        self.resharding = ReshardingService(context, self.history_table)
        self.coordinators = CoordinatorService(context, self.migrations)
        self.renames = RenameParticipants(context, self.migrations, self.range_deletions)
        self.blocked = BlockedCollections(context)
        self.waiting = WaitingOperations()
        self.router_sessions = RouterSessions()
        self.components = ShardComponents(
            context,
            ServerParameters(self.migrations.parameters, self.auto_splitter.parameters, self.key_statistics.parameters),
            self.range_deletions,
            self.migrations,
            self.coordinators,
            self.renames,
            self.blocked,
            self.transaction_coordinators,
            self.resharding,
            self.waiting,
            self.auto_splitter,
        )
        self._feature_version = FeatureVersion(context)
        self._cache_watch = CacheWatch(
            context.sidecar.mirror,
            context.sidecar.certainty,
            partial(Connection.open, transport, options.mongod_socket, handshake=handshake()),
            on_collection=self._on_cached_collection,
            on_database=self._on_cached_database,
            on_range_deletion=self.range_deletions.observe,
            on_rename=self._on_rename,
            on_gap=self._on_missed_changes,
        )
        context.sidecar.certainty.catch_up_by(self._on_missed_changes)
        self._terms = Terms(
            context,
            (
                TermRecovery(context.sidecar.begin_term),
                TermRecovery(self._feature_version.check_record),  # before unfinished work is read
                TermTask(context.writer.run),
                TermRecovery(self._begin_locks),
                TermTask(context.shown_locks.run),
                FencedWrites(fence),
                TermRecovery(lambda _: mongod.unanswered.wait_earlier_over()),
                TermRecovery(lambda _: context.config_times.recover()),
                self.transactions,
                sessions,
                self.range_deletions,
                self.history_table,
                self.migrations,
                self.resharding,
                TermRecovery(lambda _: self.previews.transactions.end_abandoned()),
                self.renames,
                self.blocked,
                TermRecovery(self.coordinators.restore_sections),
                self.coordinators,  # before the gate, so that commands find the resumed ones
                context.recovery_gate,
                self.transaction_coordinators,
                self.auto_splitter,
            ),
        )
        self._nursery = nursery

    def start(self) -> None:
        """Start the tasks that live as long as the daemon."""
        self._nursery.start_soon(self.context.pools.run)
        self._nursery.start_soon(self.context.sidecar.run, self._terms)
        self._nursery.start_soon(self._feature_version.run)
        self._nursery.start_soon(self._cache_watch.run)
        self._nursery.start_soon(self.inherited_cursors.end)
        self._nursery.start_soon(self.fenced_cursors.run)
        self._nursery.start_soon(self.living_sessions.run)
        self._nursery.start_soon(self.key_statistics.run)

    # Changes that a secondary finds in its oplog

    async def _begin_locks(self, term: int) -> None:
        self.context.shown_locks.begin(self.context.require_identity().shard_name, term)

    def _on_cached_collection(self, namespace: str) -> None:
        state = self.context.namespaces.find(namespace)
        if state is not None:
            state.forget()

    def _on_cached_database(self, db: str) -> None:
        state = self.context.databases.find(db)
        if state is not None:
            state.forget()

    def _on_rename(self, document: Mapping[str, Any]) -> None:
        for namespace in (document["_id"], document["to"]):
            self._on_cached_collection(namespace)

    async def _on_missed_changes(self) -> None:
        await self.range_deletions.observe_gap()
        self.context.forget_metadata()
