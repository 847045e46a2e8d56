"""Cursors that were open when a range was given away, and may go on returning its documents, or when one comes in."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import trio
from bson.int64 import Int64

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.range_scan import OWN_CURSOR_COMMENT

NEAREST: Final = {"$readPreference": {"mode": "nearest"}}
"""What has a secondary answer, too."""

_POLL_SECONDS_MIN: Final = 0.05
_POLL_SECONDS_MAX: Final = 1.0


class OpenCursor(NamedTuple):
    """A cursor of the mongod, and the command that opened it."""

    id: int
    command: Mapping[str, Any]


async def wait_cursors_closed(mongod: LocalMongod, namespace: str, *, opened_until: datetime) -> None:
    """Return when no cursor on a collection is left that was open at a time.

    Mongod does not announce when a cursor is closed, so it is asked from time to time, less and less often.

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


async def open_cursors(mongod: LocalMongod, namespace: str, *, opened_until: datetime) -> list[OpenCursor]:
    """The cursors on a collection that were open at a time and still are, but for tailable ones and our own.

    Args:
        mongod: where the cursors are; its clock is this machine's.
        namespace: the collection.
        opened_until: the time.

    Raises:
        CommandError: mongod does not tell.
        BackendError: mongod does not answer.
    """
    pipeline = [*_open_then(namespace, opened_until), {"$replaceWith": "$cursor"}]
    listing: dict[str, Any] = {"aggregate": 1, "pipeline": pipeline, "cursor": {}}
    cursor = (await mongod.command("admin", listing | NEAREST))["cursor"]
    found = list(cursor["firstBatch"])
    while cursor["id"]:
        more = {"getMore": Int64(cursor["id"]), "collection": "$cmd.aggregate"}
        cursor = (await mongod.command("admin", more))["cursor"]
        found += cursor["nextBatch"]
    return [OpenCursor(each["cursorId"], each["originatingCommand"]) for each in found]


async def _has_cursors(mongod: LocalMongod, namespace: str, opened_until: datetime) -> bool:
    pipeline = [*_open_then(namespace, opened_until), {"$limit": 1}, {"$project": {"_id": 1}}]
    reply = await mongod.command("admin", {"aggregate": 1, "pipeline": pipeline, "cursor": {}})
    return bool(reply["cursor"]["firstBatch"])


def _open_then(namespace: str, opened_until: datetime) -> list[dict[str, Any]]:
    # Idle cursors, and those that an operation is using. Tailable ones, which are those of change streams on a
    # collection that can be sharded, read the oplog and never end.
    open_then: dict[str, Any] = {
        "ns": namespace,
        "cursor.createdDate": {"$lte": opened_until},
        "cursor.tailable": {"$ne": True},
        # Nobody comes for what the clone of a killed daemon has left open.
        "cursor.originatingCommand.comment": {"$ne": OWN_CURSOR_COMMENT},
    }
    return [{"$currentOp": {"allUsers": True, "idleCursors": True, "localOps": True}}, {"$match": open_then}]
