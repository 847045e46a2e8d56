"""A migration's entry in its recipient's ``currentOp``."""

from typing import TYPE_CHECKING, Any

from shardwright.shardd.context.current_op_entry import operation_entry

if TYPE_CHECKING:
    from shardwright.shardd.migration.recipient.migration import RecipientMigration


def recipient_operation(migration: "RecipientMigration", address: str) -> dict[str, Any]:
    """A migration as its recipient shows it, in the same form as on the donor.

    Args:
        migration: the attempt under way.
        address: ``host:port`` of this daemon.
    """
    request, status = migration.request, migration.status
    details = {
        "ns": str(request.namespace),
        "command": {
            "_recvChunkStart": str(request.namespace),
            **request.range.to_document(),
            "fromShard": request.donor,
            "toShard": request.recipient,
            "sessionId": request.session_id,
        },
        "msg": migration.steps.text,
        "progress": {"done": status.cloned, "total": status.cloned},
        "migration": {
            "state": str(status.state),
            "attempt": max(len(request.attempts), 1),
            "documentsCloned": status.cloned,
            "bytesCloned": status.cloned_bytes,
            "counts": status.counts(),
        },
    }
    return operation_entry("migrateThread", address, migration.opid, migration.began, details)
