"""``currentOp`` entries for operations of the daemon, such as migrations."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any


def operation_entry(
    desc: str, address: str, opid: int, began: datetime, details: Mapping[str, Any], *, waits: bool = False
) -> dict[str, Any]:
    """Return an operation in mongod's format.

    Args:
        desc: MongoDB's name for the thread that runs it.
        address: ``host:port`` of this daemon.
        opid: the number that ``killOp`` accepts.
        details: its ``ns``, ``command`` and ``msg``, and its progress.
        waits: whether it is waiting for admission.
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
        "waitingForLock": waits,
    }
