"""The commit of a migration on the donor: its critical section, its outcome, and completing both sides.

**Critical section** (`DonorCriticalSection`). It blocks writes to the collection, and during the commit reads as well.
As in MongoDB it lives in memory: the next primary re-enters it because of the migration's persisted state
(`DonorService.recover`). The recipient's section is persisted instead (`recipient_state`).

**Buckets.** Some buckets of a time-series collection are closed after the move (`close_open_buckets`). mongod keeps
buckets open for further measurements and chooses among them without regard to shard keys. So a bucket that begins just
before the end of a range may receive measurements from beyond the end, which belong to another shard or still to the
donor. If the donor owns them, they would go to a bucket that is now an orphan. MongoDB's donor makes its mongod clear
its bucket catalog. Here an update closes the endangered buckets, after which mongod opens new ones. They are orphans,
so clients see no difference. The critical section continues until they are closed.

**Outcome** (`commit_on_config`). A lost reply of the config servers leaves the outcome open. Before the donor looks at
the chunks, it makes sure that a delayed commit fails: it raises the chunk's version, and config servers refuse to
commit for an older one.

A decided migration is completed with retries until it is done (`Completion`), as in MongoDB's
``MigrationCoordinator::completeMigration``: the range deletion of the side that lost the range becomes ready, the other
side's is removed, the recipient's critical section ends, and the coordinator document goes last.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

import trio
from bson.binary import Binary

from shardwright.daemon.backoff import Backoff, until_done
from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.context.fail_point_names import (
    AFTER_ABORT,
    AFTER_COMMIT,
    MIGRATION_COMMIT_NETWORK_ERROR,
    MIGRATION_COMMIT_VERSION_ERROR,
)
from shardwright.shardd.context.shard_context import ShardContext, send_to_shard
from shardwright.shardd.exchange.remote_sets import Catalog, is_transient
from shardwright.shardd.local_mongod.local_collections import MAJORITY
from shardwright.shardd.metadata.critical_sections import MOVE, Drain, SectionDriver, writers_of
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.shardd.migration.active_migrations import ABORTED, COMMITTED, MigrationCoordinatorDocument
from shardwright.shardd.migration.donor.donor_state import DonorStore
from shardwright.shardd.migration.donor.move_range import MovePlan
from shardwright.shardd.orphans.range_deletion_tasks import CLEAN_DELAYED, CLEAN_NOW, KeyRange
from shardwright.shardd.range_deleter.range_deleter_service import RangeDeletions
from shardwright.sharding.catalog.reads import read_routing
from shardwright.sharding.chunk_changes import extend_bound
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.routing_table import RoutedChunk, RoutingTable, ShardedCollection
from shardwright.sharding.time_series import TimeSeriesFields
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import decode_document, raw_document

logger = get_logger("shardd.migration.donor")

_PATIENCE_SECONDS: Final = 5.0
"""Wait of a ``moveRange`` request for an unresponsive recipient; completion then continues in the background."""


async def close_open_buckets(mongod: LocalMongod, collection: ShardedCollection, moved: KeyRange) -> None:
    """Close the buckets of a moved range that might receive measurements from outside the range.

    Args:
        collection: the collection; nothing is done if it does not hold buckets.
        moved: the range that another shard owns now.
    """
    fields = collection.time_series
    query = None if fields is None else _endangered(fields, collection, moved)
    if query is None:
        return
    closing = {"q": query, "u": {"$set": {"control.closed": True}}, "multi": True, "collation": {"locale": "simple"}}
    namespace = collection.namespace
    update = {"update": namespace.collection, "updates": [closing], "bypassDocumentValidation": True}
    await mongod.write(namespace.db, update)


def _endangered(fields: TimeSeriesFields, collection: ShardedCollection, moved: KeyRange) -> dict[str, Any] | None:
    """Return the query for the buckets that begin so shortly before the range's end that they may extend beyond it.

    Measurements of one bucket can be separated only by a key with the time, and only if they have the metadata of the
    range's end.
    """
    end: dict[str, Any] = decode_document(moved.max)
    time = end.get(fields.min_time_field)
    if not isinstance(time, datetime):
        return None  # the range ends between times, or the key has none
    hashed = collection.key_pattern.hashed_field
    query = {
        name: {"$eq": value}
        for name, value in end.items()
        if name != fields.min_time_field and (hashed is None or name.encode() != hashed.name)
    }
    query[fields.min_time_field] = {"$gte": time - timedelta(milliseconds=fields.span_ms), "$lt": time}
    return query


class DonorCriticalSection(SectionDriver[NamespaceState]):
    """One migration's critical section.

    In a new term it is restored without waiting for prepared transactions on the collection, because their coordinator
    may be on this shard and not running yet. Such transactions show that the section was never complete, so the
    migration was not committed.

    Args:
        drains: further operations to wait for, besides writes.

    Attributes:
        phases: milliseconds taken by each of its phases (see `finish`).
    """

    def __init__(self, context: ShardContext, coordinator: MigrationCoordinatorDocument, *drains: Drain) -> None:
        state = context.namespace(coordinator.namespace)
        # The session id distinguishes it from every other section.
        reason = {
            "command": "moveChunk",
            "fromShard": coordinator.donor,
            "toShard": coordinator.recipient,
            "sessionId": coordinator.session_id,
        }
        super().__init__(state, reason, MOVE, [writers_of(state), *drains])
        self.phases: dict[str, float] = {}
        self._context = context
        self._range = coordinator.range
        self._finished = 0.0

    async def notify_secondaries(self) -> None:
        """Make secondaries drop the placement, as MongoDB's do when ``enterCriticalSectionCounter`` changes.

        A read after the commit then makes each secondary query the primary, where it waits for the end of this section.
        """
        await self._context.store.count_critical_section(self.state.namespace)

    async def refresh(self) -> None:
        """Refresh the placement after the commit. If that fails, the waiting operations refresh it themselves.

        For buckets it is retried until it succeeds. They must be closed before mongod gets further measurements, and
        only the placement shows whether the range has moved.
        """

        def log_failure(error: BackendError | CommandError, retry_seconds: float | None = None) -> None:
            retry = {} if retry_seconds is None else {"retry_seconds": round(retry_seconds, 3)}
            logger.warning(
                "Could not refresh after a migration", namespace=self.state.namespace, error=str(error), **retry
            )

        if Namespace.parse(self.state.namespace).is_time_series_buckets:
            await until_done(self._refresh, Backoff(first_seconds=0.1, seconds_max=5.0), log_failure)
            return
        try:
            await self._refresh()
        except (CommandError, BackendError) as error:
            log_failure(error)

    async def _refresh(self) -> None:
        self.state.forget()
        await self._context.refresher.refresh_collection(self.state)
        await self._close_open_buckets()

    async def _close_open_buckets(self) -> None:
        """Close the buckets that must not receive measurements of this shard any more."""
        table, moved = self.state.table, self._range
        if table is None or table.shard_for_key(table.key_pattern.key_bytes(moved.min)) == self.state.shard:
            return
        await close_open_buckets(self._context.mongod, table.collection, moved)

    def finish(self, phase: str) -> None:
        """Record the duration of a phase, for the log."""
        began = self._finished or (0.0 if self.section is None else self.section.began)
        self._finished = time.monotonic()
        self.phases[f"{phase}_ms"] = round((self._finished - began) * 1000, 1)


async def commit_on_config(context: ShardContext, plan: MovePlan, cluster_time: Mapping[str, Any] | None) -> None:
    """Make the config servers assign the range to the recipient.

    Args:
        cluster_time: the recipient's ``$clusterTime`` after its last write. The new placement is valid after that time.

    Raises:
        CommandError: it was refused, or the outcome is unknown.
    """
    context.fail_points.fail_if_on(MIGRATION_COMMIT_VERSION_ERROR, ErrorCode.StaleEpoch)
    catalog = await context.catalog()
    valid_after = await context.placement_time(cluster_time)
    await catalog.commit(
        {
            "_configsvrCommitChunkMigration": str(plan.request.namespace),
            "fromShard": context.require_identity().shard_name,
            "toShard": plan.request.recipient,
            "migratedChunk": {**plan.range.to_document(), "lastmod": plan.chunk_version.to_document()},
            "fromShardCollectionVersion": plan.table.collection_version.to_document(),
            "validAfter": valid_after,
        }
    )
    context.fail_points.fail_if_on(MIGRATION_COMMIT_NETWORK_ERROR)


async def wait_outcome(context: ShardContext, coordinator: MigrationCoordinatorDocument) -> bool:
    """Whether the config servers have durably committed a migration; retries until the answer is known."""
    backoff = Backoff(first_seconds=0.05, seconds_max=2.0)
    while True:
        try:
            outcome = await _find_outcome(context, coordinator)
            await context.config_times.wait_durable()
        except (CommandError, BackendError) as error:
            logger.warning(
                "Could not find out the outcome of a migration",
                namespace=coordinator.namespace,
                migration=str(coordinator.id),
                error=str(error),
            )
        else:
            if outcome is not None:
                return outcome
        await backoff.pause()


async def _find_outcome(context: ShardContext, coordinator: MigrationCoordinatorDocument) -> bool | None:
    """Whether it was committed; None if the chunks changed in the meantime and the check has to be repeated."""
    catalog = await context.catalog()
    chunk = await _chunk_of_donor(catalog, coordinator)
    if isinstance(chunk, bool):
        return chunk
    await catalog.commit(
        {
            "_configsvrEnsureChunkVersionIsGreaterThan": coordinator.namespace,
            "minKey": raw_document(chunk.min),
            "maxKey": raw_document(chunk.max),
            "version": coordinator.chunk_version.to_document(),
            "collectionUUID": Binary.from_uuid(coordinator.collection_uuid),
        }
    )
    chunk = await _chunk_of_donor(catalog, coordinator)
    if isinstance(chunk, bool):
        return chunk
    return False if chunk.version > coordinator.chunk_version.packed else None


async def _chunk_of_donor(catalog: Catalog, coordinator: MigrationCoordinatorDocument) -> RoutedChunk | bool:
    """Return the donor's chunk in which the range begins or, if there is none, whether the range has moved."""
    table: RoutingTable | None = await catalog.read(read_routing(coordinator.namespace))
    if table is None or table.collection.uuid != coordinator.collection_uuid:
        return False  # the collection was dropped, so no shard owns the range
    chunk = table.chunk_for_key(table.key_pattern.key_bytes(extend_bound(coordinator.range.min, table.key_pattern)))
    return chunk if chunk.shard == coordinator.donor else True


async def decide(
    context: ShardContext, coordinator: MigrationCoordinatorDocument, *, is_committed: bool
) -> MigrationCoordinatorDocument:
    """Persist the decision, with retries until that succeeds; return the coordinator document with it."""
    await context.fail_points.hang_while((AFTER_COMMIT if is_committed else AFTER_ABORT).before_making_decision_durable)
    decided = replace(coordinator, decision=COMMITTED if is_committed else ABORTED)

    def log_failure(error: BackendError | CommandError, retry_seconds: float) -> None:
        logger.warning(
            "Could not persist a migration's decision",
            migration=str(coordinator.id),
            error=str(error),
            retry_seconds=round(retry_seconds, 3),
        )

    save = partial(DonorStore(context.mongod).save_decision, decided)
    await until_done(save, Backoff(first_seconds=0.1, seconds_max=5.0), log_failure)
    return decided


class Completion:
    """The completion of one migration.

    Args:
        coordinator: its document with the decision, already persisted.
        session_id: the migration session id of the last attempt.
        waits_for_delete: whether the request waits for the deletion of the donor's documents.
    """

    def __init__(
        self,
        context: ShardContext,
        range_deletions: RangeDeletions,
        coordinator: MigrationCoordinatorDocument,
        session_id: str,
        *,
        waits_for_delete: bool,
    ) -> None:
        assert coordinator.decision is not None
        self._context = context
        self._range_deletions = range_deletions
        self._coordinator = coordinator
        self._session_id = session_id
        self._when = CLEAN_NOW if waits_for_delete else CLEAN_DELAYED
        self._store = DonorStore(context.mongod)
        self._places = AFTER_COMMIT if coordinator.decision == COMMITTED else AFTER_ABORT
        self._logger = logger.bind(
            namespace=coordinator.namespace,
            migration=str(coordinator.id),
            session=session_id,
            recipient=coordinator.recipient,
            decision=coordinator.decision,
        )

    async def run(self, nursery: trio.Nursery) -> None:
        """Complete the migration; after a few seconds, completion continues in ``nursery``."""
        is_done = False
        with trio.move_on_after(_PATIENCE_SECONDS):
            is_done = await self._try()
        if not is_done:
            nursery.start_soon(self.run_until_done)

    async def run_until_done(self) -> None:
        """Complete the migration, however long the recipient is unavailable."""
        backoff = Backoff(first_seconds=0.1, seconds_max=5.0)
        while not await self._try():
            await backoff.pause()

    async def _try(self) -> bool:
        fail_points = self._context.fail_points
        try:
            await self._complete_here()
            await fail_points.hang_while(self._places.before_sending_decision)
            await self._complete_on_recipient()
            await fail_points.hang_while(self._places.before_forgetting_migration)
            await self._store.forget(self._coordinator.id)
        except (CommandError, BackendError) as error:
            self._logger.warning("Could not complete a migration", error=str(error))
            return False
        self._logger.info("Completed a migration")
        return True

    async def _complete_here(self) -> None:
        deletions, migration_id = self._range_deletions, self._coordinator.id
        if self._coordinator.decision == COMMITTED:
            await deletions.mark_ready(migration_id, when=self._when)
        else:
            await deletions.remove(migration_id)

    async def _complete_on_recipient(self) -> None:
        coordinator, session_id = self._coordinator, self._session_id
        namespace = coordinator.namespace
        try:
            if coordinator.decision != COMMITTED:
                await self._abort_recipient()
            release = {"_recvChunkReleaseCritSec": namespace, "sessionId": session_id, "writeConcern": MAJORITY}
            await self._send(release)
            await self._send(
                {
                    "_shardsvrFinishRangeDeletion": namespace,
                    "migrationId": Binary.from_uuid(coordinator.id),
                    "decision": coordinator.decision,
                    "writeConcern": MAJORITY,
                }
            )
        except CommandError as error:
            # A shard that was removed from the cluster has nothing to release.
            if error.code != ErrorCode.ShardNotFound:
                raise
            self._logger.info("The recipient shard was removed")

    async def _abort_recipient(self) -> None:
        try:
            await self._send({"_recvChunkAbort": self._coordinator.namespace, "sessionId": self._session_id})
        except CommandError as error:
            if is_transient(error) or error.code == ErrorCode.ShardNotFound:
                raise
            self._logger.info("The recipient had nothing to abort", error=str(error))

    async def _send(self, command: dict[str, Any]) -> None:
        await send_to_shard(self._context, self._coordinator.recipient, "admin", command)
