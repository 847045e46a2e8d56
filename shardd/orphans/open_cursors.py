"""Waiting for cursors: those that were open when a range was given away may go on returning its documents."""

from datetime import UTC, datetime
from typing import Any, Final

import trio

from daemon.sidecar.mongod import LocalMongod
from shardd.range_scan import OWN_CURSOR_COMMENT

_POLL_SECONDS_MIN: Final = 0.05
_POLL_SECONDS_MAX: Final = 1.0


async def wait_cursors_closed(mongod: LocalMongod, namespace: str, *, opened_until: datetime) -> None:
    """Return when no cursor on a collection is left that was open at a time.

    Mongod tells nobody when a cursor is closed, so it is asked from time to time, less and less often.

    Args:
        mongod: where the cursors are; its clock is this machine's.
        namespace: the collection.
        opened_until: the time.

    Raises:
        CommandError: mongod does not tell.
        BackendError: mongod does not answer.
    """
    pause = _POLL_SECONDS_MIN
    while await _has_cursors(mongod, namespace, opened_until):
        await trio.sleep(pause)
        pause = min(2 * pause, _POLL_SECONDS_MAX)


def now() -> datetime:
    """The present, as cursors tell when they were opened."""
    return datetime.now(UTC)


async def _has_cursors(mongod: LocalMongod, namespace: str, opened_until: datetime) -> bool:
    # Idle cursors, and those that an operation is using. Tailable ones, which are those of change streams on a
    # collection that can be sharded, read the oplog and never end.
    open_then: dict[str, Any] = {
        "ns": namespace,
        "cursor.createdDate": {"$lte": opened_until},
        "cursor.tailable": {"$ne": True},
        # Nobody comes for what the clone of a killed daemon has left open.
        "cursor.originatingCommand.comment": {"$ne": OWN_CURSOR_COMMENT},
    }
    pipeline = [
        {"$currentOp": {"allUsers": True, "idleCursors": True, "localOps": True}},
        {"$match": open_then},
        {"$limit": 1},
        {"$project": {"_id": 1}},
    ]
    reply = await mongod.command("admin", {"aggregate": 1, "pipeline": pipeline, "cursor": {}})
    return bool(reply["cursor"]["firstBatch"])
