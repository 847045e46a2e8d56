"""Finding the cursors that were open when a range was given away or received, and so may return its documents."""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from bson.int64 import Int64

from shardwright.daemon.backoff import Backoff
from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.range_scan import OWN_CURSOR_COMMENT
from shardwright.shardd.orphans.cursors_in_use import CursorsInUse
from shardwright.wire.rawbson import decode_value, index
from shardwright.wire.transport.cursor import DecodedCursor, RawCursor, RunCommand
from shardwright.wire.transport.pool import Pool

_NEAREST: Final = {"$readPreference": {"mode": "nearest"}}
"""Lets a secondary answer, too."""

_ALL_CURSORS: Final = {"$currentOp": {"allUsers": True, "idleCursors": True, "localOps": True}}

_LISTING_MS_MAX: Final = 60_000
"""Tolerance for cursors that were opened after the listing that shows them began: their date is later than its."""


class OpenCursor(NamedTuple):
    """A cursor on mongod.

    Attributes:
        id: its id.
        namespace: what it reads, ``db.collection``.
        is_older: whether it is one of the older cursors that were asked for.
        command: the command that opened it.
        is_begun: its pipeline has been executed in part at least: with ``batchSize: 0`` that begins with the first
            ``getMore``.
        transaction: the ``lsid`` and number of the transaction that it belongs to, if any.
        returned: how many documents it has returned.
        session: the ``lsid`` in which it was opened, with its owner.
        times_out: whether mongod ends it after some minutes without a reader; the end of its session ends it anyway.
    """

    id: int
    namespace: str
    is_older: bool
    command: Mapping[str, Any]
    is_begun: bool = True
    transaction: tuple[Mapping[str, Any], int] | None = None
    returned: int = 0
    session: Mapping[str, Any] | None = None
    times_out: bool = False


class Moment:
    """Separates the cursors on one collection that are open from those that are opened later.

    The first complete listing decides, not a clock: it may have been set back since a cursor was opened.

    Attributes:
        open: ids of the cursors that are open; None until they have been listed.
    """

    __slots__ = ("open",)

    def __init__(self) -> None:
        self.open: frozenset[int] | None = None

    def older(self, listed: Iterable[OpenCursor]) -> list[OpenCursor]:
        """The cursors that were open at this moment."""
        wanted = [each for each in listed if each.is_older]
        if self.open is None:
            self.open = frozenset(each.id for each in wanted)
        return [each for each in wanted if each.id in self.open]


class OpenCursors:
    """The cursors of clients on the local mongod.

    Attributes:
        in_use: those from which a batch is being read.
        is_transaction_open: whether a transaction, given by its ``lsid`` and number, is open on this shard.
    """

    def __init__(self, mongod: LocalMongod) -> None:
        self.in_use = CursorsInUse()
        self.is_transaction_open: Callable[[Mapping[str, Any], int], bool] = lambda _lsid, _number: True
        self._mongod = mongod

    async def wait_closed(self, namespace: str, *, opened_until: Moment) -> None:
        """Return when all cursors on a collection that were open at a moment are closed.

        mongod does not announce when a cursor is closed, so this polls, at increasing intervals.

        Args:
            namespace: the collection.
            opened_until: the moment.

        Raises:
            CommandError: mongod refuses.
            BackendError: mongod does not answer.
        """
        backoff = Backoff(first_seconds=0.05, seconds_max=1.0)
        found = await self.older(namespace, opened_until=opened_until)
        while found:
            await self._end_useless(namespace, found)
            await backoff.pause()
            # To be certain, readers must be held back, which is worthwhile only if this listing shows no cursor.
            visible = opened_until.older(await _listed(self._mongod.command, _on(namespace)))
            found = visible or await self.older(namespace, opened_until=opened_until)

    async def older(self, namespace: str, *, opened_until: Moment) -> list[OpenCursor]:
        """All open cursors on a collection that were open at a moment, except tailable ones and our own.

        Args:
            namespace: the collection.
            opened_until: the moment.

        Raises:
            CommandError: mongod refuses.
            BackendError: mongod does not answer.
        """
        backoff = Backoff(first_seconds=0.01, seconds_max=0.1)
        while True:
            async with self.in_use.held() as in_use:
                found = await _listed(self._mongod.command, _on(namespace), also=in_use)
            if in_use <= {each.id for each in found}:
                return opened_until.older(found)
            await backoff.pause()

    async def wait_closed_on(self, pool: Pool, namespace: str) -> None:
        """Return when all cursors on a collection that are open now on another member of the set are closed.

        Args:
            pool: connections to its mongod.
            namespace: the collection.

        Raises:
            CommandError: it refuses.
            BackendError: it does not answer.
        """
        backoff = Backoff(first_seconds=0.05, seconds_max=5.0)
        present, wanted = now(), _on(namespace)
        # Its readers cannot be held back, so a cursor that begins to be read may be missing from one listing.
        present.older([each for _ in range(2) for each in await _listed(pool.command, wanted)])
        while any([present.older(await _listed(pool.command, wanted)) for _ in range(2)]):
            await backoff.pause()

    async def raw_commands(self, cursor_ids: Collection[int]) -> dict[int, bytes]:
        """The commands that opened some cursors, as they were received, by the ids of those that are still open.

        Raises:
            CommandError: mongod refuses.
            BackendError: mongod does not answer.
        """
        wanted = {"cursor.cursorId": {"$in": [Int64(each) for each in cursor_ids]}}
        shown = {"id": "$cursor.cursorId", "command": "$cursor.originatingCommand"}
        stages = [_ALL_CURSORS, {"$match": wanted}, {"$replaceRoot": {"newRoot": shown}}]
        listing = {"aggregate": 1, "pipeline": stages, "cursor": {}, **_NEAREST}
        commands: dict[int, bytes] = {}
        for each in await RawCursor(self._mongod.pool.exchange, "admin", listing).all_documents():
            fields = index(each)
            command = fields[b"command"]
            commands[decode_value(each, fields[b"id"])] = each[command[2] : command[3]]
        return commands

    async def still_open(self, cursor_ids: Collection[bytes]) -> set[bytes]:
        """Those of some cursors that are open, by their raw ids; all from which a batch is being read are.

        Raises:
            CommandError: mongod refuses.
            BackendError: mongod does not answer.
        """
        wanted = [Int64(int.from_bytes(each, "little", signed=True)) for each in cursor_ids]
        stages = [_ALL_CURSORS, {"$match": {"cursor.cursorId": {"$in": wanted}}}, {"$project": {"cursor.cursorId": 1}}]
        listing = {"aggregate": 1, "pipeline": stages, "cursor": {}, **_NEAREST}
        with self.in_use.noting_batches() as read:
            found = await DecodedCursor(self._mongod.command, "admin", listing).all_documents()
        listed = {int(each["cursor"]["cursorId"]).to_bytes(8, "little", signed=True) for each in found}
        # One that begins to be read during the listing may be missing in it.
        return listed | {each for each in cursor_ids if each in self.in_use or each in read}

    async def _end_useless(self, namespace: str, cursors: Iterable[OpenCursor]) -> None:
        """End cursors of transactions that have ended: nobody can read them, but mongod keeps them."""
        useless = [
            Int64(each.id)
            for each in cursors
            if each.transaction is not None and not self.is_transaction_open(*each.transaction)
        ]
        if useless:
            db, _, collection = namespace.partition(".")
            await self._mongod.command(db, {"killCursors": collection, "cursors": useless})


async def client_cursors(mongod: LocalMongod, *, opened_until: datetime) -> list[OpenCursor]:
    """The cursors on clients' collections that were open at a time and still are, except tailable ones.

    Those of ``local``, ``config`` and ``admin`` are not among them, and all others of this daemon are. One from which a
    batch is being read may be missing.

    Args:
        mongod: where the cursors are; its clock is this machine's.
        opened_until: the time. A cursor that was opened in the future was opened before the clock was set back.

    Raises:
        CommandError: mongod does not say which are open.
        BackendError: mongod does not answer.
    """
    is_internal = {"$regexMatch": {"input": "$ns", "regex": r"^(local|config|admin)\."}}
    opened = "$cursor.createdDate"
    is_in_future = {"$gt": [opened, {"$add": ["$$NOW", _LISTING_MS_MAX]}]}
    is_older = {"$or": [{"$lte": [opened, opened_until]}, is_in_future]}
    return await _listed(mongod.command, _wanted(is_older, {"$not": is_internal}))


def now() -> Moment:
    """The present."""
    return Moment()


def _on(namespace: str) -> dict[str, Any]:
    # A killed daemon may have left the cursor of a clone open, which nobody reads any more.
    is_own = {"$eq": ["$cursor.originatingCommand.comment", OWN_CURSOR_COMMENT]}
    return _wanted({"$eq": ["$ns", namespace]}, {"$not": is_own})


def _wanted(*conditions: Mapping[str, Any]) -> dict[str, Any]:
    # Tailable ones are left out: on a collection that can be sharded they belong to change streams, which read the
    # oplog and never end. Operations without a cursor have no id of one.
    is_cursor = {"$gt": ["$cursor.cursorId", None]}
    return {"$and": [is_cursor, {"$ne": ["$cursor.tailable", True]}, *conditions]}


async def _listed(command: RunCommand, is_wanted: Mapping[str, Any], *, also: Collection[int] = ()) -> list[OpenCursor]:
    stages = [
        _ALL_CURSORS,
        {"$set": {"isOlder": is_wanted}},
        {"$match": {"$or": [{"isOlder": True}, {"cursor.cursorId": {"$in": list(also)}}]}},
        {
            "$project": {
                **{"ns": 1, "lsid": 1, "isOlder": 1, "cursor.cursorId": 1, "cursor.originatingCommand": 1},
                **{"cursor.nDocsReturned": 1, "cursor.noCursorTimeout": 1},
            }
        },
    ]
    listing = {"aggregate": 1, "pipeline": stages, "cursor": {}, **_NEAREST}
    found = await DecodedCursor(command, "admin", listing).all_documents()
    return [_open_cursor(each, each["cursor"]) for each in found]


def _open_cursor(operation: Mapping[str, Any], cursor: Mapping[str, Any]) -> OpenCursor:
    command = cursor.get("originatingCommand", {})
    options = command if "find" in command else command.get("cursor", {})
    is_deferred = isinstance(options, Mapping) and options.get("batchSize") == 0
    returned = int(cursor.get("nDocsReturned", 0))
    session = operation.get("lsid")
    return OpenCursor(
        cursor["cursorId"],
        operation["ns"],
        operation["isOlder"],
        command,
        not is_deferred or returned > 0,
        _transaction_of(command),
        returned,
        session,
        session is None and not cursor.get("noCursorTimeout"),
    )


def _transaction_of(command: Mapping[str, Any]) -> tuple[Mapping[str, Any], int] | None:
    return (command["lsid"], int(command["txnNumber"])) if "autocommit" in command else None
