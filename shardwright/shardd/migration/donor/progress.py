"""What can be seen of a donation while it is under way: in ``currentOp``, in the metrics and in the log."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shardwright.daemon.metrics import Metrics
from shardwright.shardd.migration.operation import migration_operation
from shardwright.shardd.migration.registry import Donation
from shardwright.wire.rawbson import raw_document

if TYPE_CHECKING:
    from shardwright.shardd.migration.donor.migration import DonorMigration


def donation_operation(donation: Donation, migration: "DonorMigration | None", address: str) -> dict[str, Any]:
    """A donation as ``currentOp`` of a MongoDB 6.0 donor shows it, with more of its progress.

    Args:
        donation: the one under way.
        migration: what has come of it so far; None before everything has been checked and persisted.
        address: ``host:port`` of this daemon.
    """
    key = donation.key
    bounds = {name: raw_document(bound) for name, bound in (("min", key.min), ("max", key.max)) if bound is not None}
    command: dict[str, Any] = {"moveRange": key.namespace, **bounds, "toShard": key.recipient}
    details: dict[str, Any] = {"ns": key.namespace, "command": command, "msg": donation.message}
    if migration is not None:
        command |= migration.coordinator.range.to_document()
        command |= {"fromShard": migration.coordinator.donor, "sessionId": migration.session_id}
        details |= _transfer(migration)
    return migration_operation("MoveChunk", address, donation.opid, donation.began, details)


def _transfer(migration: "DonorMigration") -> dict[str, Any]:
    source, status = migration.source, migration.status
    cloned = 0 if source is None else source.documents_cloned
    return {
        "progress": {"done": cloned, "total": max(migration.documents_estimated, cloned)},
        "migration": {
            "state": "" if status is None else status.state,
            "attempt": len(migration.attempts.attempts),
            "documentsCloned": cloned,
            "bytesCloned": 0 if source is None else source.bytes_cloned,
            "documentsQueued": 0 if source is None else source.queued_ids,
            "bytesQueued": 0 if source is None else source.queued_bytes,
            "counts": {} if status is None else dict(status.counts),
        },
    }


def progress_fields(migration: "DonorMigration") -> dict[str, object]:
    """How far a migration has come, as the log says it. What former attempts have cloned counts as well."""
    source, status = migration.source, migration.status
    counts = {} if status is None else status.counts
    cloned = int(counts.get("cloned", 0))
    return {
        "attempt": len(migration.attempts.attempts),
        "documents_cloned": cloned,
        "documents_estimated": max(migration.documents_estimated, cloned),
        "bytes_cloned": int(counts.get("clonedBytes", 0)),
        "documents_queued": 0 if source is None else source.queued_ids,
        "bytes_queued": 0 if source is None else source.queued_bytes,
        "recipient_state": "" if status is None else status.state,
    }


class DonorMetrics:
    """Counters of the donations of one daemon, and gauges of the one under way.

    Args:
        metrics: of the daemon.
        current: the migration under way.
    """

    def __init__(self, metrics: Metrics, current: Callable[[], "DonorMigration | None"]) -> None:
        self._ended = metrics.labelled_counter("donations", "Migrations from this shard that have ended", "outcome")
        self._documents = metrics.counter("donated_documents", "Documents cloned to other shards")
        self._bytes = metrics.counter("donated_bytes", "Bytes cloned to other shards")
        self._blocked_ms = metrics.counter("donor_critical_section_ms", "Time in critical sections of donations")
        self._last_blocked_ms = 0.0

        def read(value: Callable[["DonorMigration"], float]) -> Callable[[], float]:
            def read_now() -> float:
                migration = current()
                return 0 if migration is None else value(migration)

            return read_now

        gauge = metrics.gauge
        gauge("donation_active", "Whether this shard gives a range", read(lambda migration: 1))
        gauge("donation_step", "Step of the donation under way", read(lambda migration: migration.steps.done))
        gauge(
            "donation_documents_estimated",
            "Documents in the range of the donation under way",
            read(lambda migration: migration.documents_estimated),
        )
        gauge(
            "donation_documents_cloned",
            "Documents of it that have been cloned",
            read(lambda migration: migration.source.documents_cloned if migration.source else 0),
        )
        gauge(
            "donation_bytes_cloned",
            "Bytes of it that have been cloned",
            read(lambda migration: migration.source.bytes_cloned if migration.source else 0),
        )
        gauge(
            "donation_documents_queued",
            "Changed documents of it that the recipient has still to be told of",
            read(lambda migration: migration.source.queued_ids if migration.source else 0),
        )
        gauge(
            "donation_queued_bytes",
            "Memory that they take",
            read(lambda migration: migration.source.queued_bytes if migration.source else 0),
        )
        gauge(
            "donor_last_critical_section_ms",
            "How long operations had to wait for the last donation",
            lambda: self._last_blocked_ms,
        )

    def ended(self, migration: "DonorMigration", *, is_committed: bool) -> None:
        """Count a migration that has ended."""
        self._ended.add("committed" if is_committed else "aborted")
        counts = {} if migration.status is None else migration.status.counts
        self._documents.add(int(counts.get("cloned", 0)))
        self._bytes.add(int(counts.get("clonedBytes", 0)))
        self._last_blocked_ms = migration.critical_section_seconds * 1000
        self._blocked_ms.add(round(self._last_blocked_ms))
