"""A migration's entry in its donor's ``currentOp``."""

from typing import Any

from shardwright.shardd.context.current_op_entry import operation_entry
from shardwright.shardd.migration.active_migrations import ActiveDonorMigration
from shardwright.shardd.migration.donor.migration import DonorMigration
from shardwright.wire.rawbson import raw_document


def donor_operation(active: ActiveDonorMigration, migration: DonorMigration | None, address: str) -> dict[str, Any]:
    """A migration as ``currentOp`` of a MongoDB 6.0 donor shows it, with more detail about its progress.

    Args:
        active: the migration under way.
        migration: its state; None until the request has been checked and persisted.
        address: ``host:port`` of this daemon.
    """
    key = active.key
    bounds = {name: raw_document(bound) for name, bound in (("min", key.min), ("max", key.max)) if bound is not None}
    command: dict[str, Any] = {"moveRange": key.namespace, **bounds, "toShard": key.recipient}
    details: dict[str, Any] = {"ns": key.namespace, "command": command, "msg": active.message}
    if migration is not None:
        command |= migration.coordinator.range.to_document()
        command |= {"fromShard": migration.coordinator.donor, "sessionId": migration.session_id}
        details |= _transfer(migration)
    return operation_entry("MoveChunk", address, active.opid, active.began, details)


def _transfer(migration: DonorMigration) -> dict[str, Any]:
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
