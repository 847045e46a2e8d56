"""Assembly of the shard daemon: the context first, then each component after its dependencies."""

from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Any

import trio

from shardwright.daemon.metrics import Metrics
from shardwright.daemon.sidecar.options import SidecarOptions
from shardwright.daemon.sidecar.term_fence import TermFence
from shardwright.shardd.commands.command import ShardComponents
from shardwright.shardd.commands.server_parameters import ServerParameters
from shardwright.shardd.context.feature_version import FeatureVersion
from shardwright.shardd.context.shard_context import ShardContext, handshake
from shardwright.shardd.ddl.coordinators.service import CoordinatorService
from shardwright.shardd.ddl.participants import BlockedCollections
from shardwright.shardd.ddl.rename_participants import RenameParticipants
from shardwright.shardd.key_statistics.key_statistics import KeyStatistics
from shardwright.shardd.living_sessions import LivingSessions
from shardwright.shardd.local_mongod.reserved_sessions import ReservedSessions
from shardwright.shardd.metadata.secondary_metadata import CacheWatch
from shardwright.shardd.migration.migrations import Migrations
from shardwright.shardd.operations.waiting_operations import WaitingOperations
from shardwright.shardd.orphans.fenced_cursors import FencedCursors
from shardwright.shardd.orphans.open_cursors import InheritedCursors
from shardwright.shardd.range_deleter.range_deletions import RangeDeletions
from shardwright.shardd.resharding.service import ReshardingService
from shardwright.shardd.session_history.migrated_history import HistoryTable
from shardwright.shardd.shard_key_updates.update_preview import UpdatePreviews
from shardwright.shardd.splitting.auto_splitter import AutoSplitter
from shardwright.shardd.splitting.chunk_splitter import ChunkSplitter
from shardwright.shardd.terms import FencedWrites, TermRecovery, Terms, TermTask
from shardwright.shardd.transactions.session_keys import RouterSessions
from shardwright.shardd.transactions.transactions import Transactions
from shardwright.shardd.two_phase_commit.coordinators import TransactionCoordinators
from shardwright.wire.transport.client import Connection


class ShardServer:
    """One shard daemon.

    Args:
        nursery: for tasks that live as long as the daemon.
        on_mongod_lost: see `Sidecar`.

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
        self, options: SidecarOptions, metrics: Metrics, nursery: trio.Nursery, on_mongod_lost: Callable[[], None]
    ) -> None:
        self.context = context = ShardContext(options, metrics, nursery, on_mongod_lost)
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
            partial(Connection.open, options.mongod_socket, handshake=handshake()),
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
                TermRecovery(mongod.unanswered.wait_earlier_over),
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
                context.recovery_gate,
                self.coordinators,
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
