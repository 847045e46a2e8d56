"""Metrics of the migrations in which this shard is the donor."""

from collections.abc import Callable

from shardwright.daemon.metrics import Metrics
from shardwright.shardd.migration.donor.migration import DonorMigration


class DonorMetrics:
    """Counters of migrations from this shard, and gauges of the one under way.

    Args:
        metrics: the daemon's metrics.
        current: returns the migration under way, if any.
    """

    def __init__(self, metrics: Metrics, current: Callable[[], DonorMigration | None]) -> None:
        self._ended = metrics.labelled_counter(
            "donor_migrations", "Finished migrations from this shard", "outcome", ("committed", "aborted")
        )
        self._documents = metrics.counter("donor_documents_cloned", "Documents cloned to other shards")
        self._bytes = metrics.counter("donor_bytes_cloned", "Bytes of documents cloned to other shards")
        self._blocked_seconds = metrics.counter(
            "donor_critical_section_seconds", "Time in critical sections of migrations from this shard"
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
            "Time in the critical section of the last migration from this shard",
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
