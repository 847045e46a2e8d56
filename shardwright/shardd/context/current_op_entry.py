"""The entry in ``currentOp`` of an operation of the daemon, such as a migration, that its mongod does not know."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any


def operation_entry(
    desc: str, address: str, opid: int, began: datetime, details: Mapping[str, Any], *, waits: bool = False
) -> dict[str, Any]:
    """An operation in the form in which mongod reports its operations.

    Args:
        desc: MongoDB's name for the thread that runs it.
        address: ``host:port`` of this daemon.
        opid: the number under which ``killOp`` ends it.
        began: when it began.
        details: its ``ns``, ``command`` and ``msg``, and its progress.
        waits: it waits to be admitted.
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
