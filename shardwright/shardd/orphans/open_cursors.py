"""Finding the cursors that were open when a range was given away or received, and so may return its documents."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from bson.int64 import Int64

from shardwright.daemon.backoff import Backoff
from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.range_scan import OWN_CURSOR_COMMENT

NEAREST: Final = {"$readPreference": {"mode": "nearest"}}
"""Lets a secondary answer, too."""


class OpenCursor(NamedTuple):
    """A cursor on mongod, and the command that opened it."""

    id: int
    command: Mapping[str, Any]


async def wait_cursors_closed(mongod: LocalMongod, namespace: str, *, opened_until: datetime) -> None:
    """Return when all cursors on a collection that were opened before a time are closed.

    mongod does not announce when a cursor is closed, so this polls, at increasing intervals.

    Args:
        mongod: the local mongod, which has the same clock as this daemon.
        namespace: the collection.
        opened_until: the time.

    Raises:
        CommandError: mongod refuses.
        BackendError: mongod does not answer.
    """
    backoff = Backoff(first_seconds=0.05, seconds_max=1.0)
    while await _has_cursors(mongod, namespace, opened_until):
        await backoff.pause()


def now() -> datetime:
    """The present, in the form of a cursor's ``createdDate``."""
    return datetime.now(UTC)


async def open_cursors(mongod: LocalMongod, namespace: str, *, opened_until: datetime) -> list[OpenCursor]:
    """The open cursors on a collection that were opened before a time, except tailable ones and our own.

    Args:
        mongod: the local mongod, which has the same clock as this daemon.
        namespace: the collection.
        opened_until: the time.

    Raises:
        CommandError: mongod refuses.
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
    # Cursors that are idle or in use. Tailable ones are left out: on a collection that can be sharded they belong to
    # change streams, which read the oplog and never end.
    open_then: dict[str, Any] = {
        "ns": namespace,
        "cursor.createdDate": {"$lte": opened_until},
        "cursor.tailable": {"$ne": True},
        # A killed daemon may have left the cursor of a clone open, which nobody reads any more.
        "cursor.originatingCommand.comment": {"$ne": OWN_CURSOR_COMMENT},
    }
    return [{"$currentOp": {"allUsers": True, "idleCursors": True, "localOps": True}}, {"$match": open_then}]
