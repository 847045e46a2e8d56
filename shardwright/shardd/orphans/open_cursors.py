"""Finding the cursors that were open when a range was given away or received, and so may return its documents."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from shardwright.daemon.backoff import Backoff
from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.range_scan import OWN_CURSOR_COMMENT
from shardwright.wire.transport.cursor import DecodedCursor

_NEAREST: Final = {"$readPreference": {"mode": "nearest"}}
"""Lets a secondary answer, too."""


class OpenCursor(NamedTuple):
    """A cursor on mongod, what it reads (``db.collection``), and the command that opened it."""

    id: int
    namespace: str
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
    return await _listed(mongod, _open_then(opened_until, _on_collection(namespace)))


async def client_cursors(mongod: LocalMongod, *, opened_until: datetime) -> list[OpenCursor]:
    """The cursors on clients' collections that were open at a time and still are, but for tailable ones.

    Those of ``local``, ``config`` and ``admin`` are not among them, and all others of this daemon are.

    Args:
        mongod: where the cursors are; its clock is this machine's.
        opened_until: the time.

    Raises:
        CommandError: mongod does not tell.
        BackendError: mongod does not answer.
    """
    return await _listed(mongod, _open_then(opened_until, {"ns": {"$not": {"$regex": r"^(local|config|admin)\."}}}))


async def _listed(mongod: LocalMongod, stages: list[dict[str, Any]]) -> list[OpenCursor]:
    listing = {"aggregate": 1, "pipeline": stages, "cursor": {}, **_NEAREST}
    found = await DecodedCursor(mongod.command, "admin", listing).all_documents()
    return [
        OpenCursor(each["cursor"]["cursorId"], each["ns"], each["cursor"].get("originatingCommand", {}))
        for each in found
    ]


async def _has_cursors(mongod: LocalMongod, namespace: str, opened_until: datetime) -> bool:
    stages = [*_open_then(opened_until, _on_collection(namespace)), {"$limit": 1}, {"$project": {"_id": 1}}]
    reply = await mongod.command("admin", {"aggregate": 1, "pipeline": stages, "cursor": {}})
    return bool(reply["cursor"]["firstBatch"])


def _on_collection(namespace: str) -> dict[str, Any]:
    # A killed daemon may have left the cursor of a clone open, which nobody reads any more.
    return {"ns": namespace, "cursor.originatingCommand.comment": {"$ne": OWN_CURSOR_COMMENT}}


def _open_then(opened_until: datetime, wanted: Mapping[str, Any]) -> list[dict[str, Any]]:
    # Cursors that are idle or in use. Tailable ones are left out: on a collection that can be sharded they belong to
    # change streams, which read the oplog and never end.
    open_then = {**wanted, "cursor.createdDate": {"$lte": opened_until}, "cursor.tailable": {"$ne": True}}
    return [{"$currentOp": {"allUsers": True, "idleCursors": True, "localOps": True}}, {"$match": open_then}]
