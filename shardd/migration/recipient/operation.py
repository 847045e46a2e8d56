"""What ``currentOp`` shows of a range that is being received."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardd.migration.recipient.migration import RecipientMigration


def recipient_operation(migration: "RecipientMigration", address: str) -> dict[str, Any]:
    """An attempt to receive a range, in the form in which donors show theirs.

    Args:
        migration: the attempt under way.
        address: ``host:port`` of this daemon.
    """
    request, status, now = migration.request, migration.status, datetime.now(UTC)
    running = (now - migration.began).total_seconds()
    return {
        "type": "op",
        "host": address,
        "desc": "migrateThread",
        "active": True,
        "currentOpTime": now.isoformat(timespec="milliseconds"),
        "opid": migration.opid,
        "secs_running": int(running),
        "microsecs_running": int(running * 1_000_000),
        "op": "command",
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
        "numYields": 0,
        "waitingForLock": False,
    }
