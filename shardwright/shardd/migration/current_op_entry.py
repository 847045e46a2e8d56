"""The form in which ``currentOp`` shows a migration on its donor and on its recipient."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any


def migration_operation(
    desc: str, address: str, opid: int, began: datetime, details: Mapping[str, Any]
) -> dict[str, Any]:
    """A migration as one of a mongod's operations.

    Args:
        desc: what MongoDB calls the thread that does it.
        address: ``host:port`` of this daemon.
        opid: the number under which ``killOp`` takes it.
        began: when it did.
        details: its ``ns``, ``command`` and ``msg``, and how far it has come.
    """
    now = datetime.now(UTC)
    running = (now - began).total_seconds()
    return {
        "type": "op",
        "host": address,
        "desc": desc,
        "active": True,
        "currentOpTime": now.isoformat(timespec="milliseconds"),
        "opid": opid,
        "secs_running": int(running),
        "microsecs_running": int(running * 1_000_000),
        "op": "command",
        **details,
        "numYields": 0,
        "waitingForLock": False,
    }
