"""Cursors that clients have open on the local mongod: listing them, and waiting until they close.

mongod lists the cursors in use first, then the idle ones, so a listing is not atomic. A cursor whose batch begins
between the two parts, or has only just begun, is in neither. Where no cursor may be missed, new ``getMore`` commands
are held back during the listing. It is repeated until it shows all cursors in use. A cursor is in use only while mongod
may be reading it. A ``getMore`` that waits for anything else has not been sent, so its cursor is idle, if still open.

Inherited cursors were opened through an earlier process of this daemon, which ended while mongod kept running. Their
hidden ranges and involved collections existed only in that process's memory. So they are ended as if mongod had
restarted, and their clients get CursorNotFound.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Set
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import trio
from bson.int64 import Int64

from shardwright.daemon.backoff import Backoff
from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.shard_key_index import OWN_CURSOR_COMMENT
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import decode_value, index
from shardwright.wire.request import Request
from shardwright.wire.transport.cursor import DecodedCursor, RawCursor, RunCommand
from shardwright.wire.transport.pool import Pool

SETTLE_SECONDS_MAX: Final = 0.02
"""Maximum wait of a listing for batches in progress; mongod shows the cursors of longer ones as in use."""


class CursorsInUse:
    """The cursors from which a batch is being read, by raw cursor id. While `is_held`, new batches must wait."""

    def __init__(self) -> None:
        self.is_held = False
        self._readers: dict[bytes, int] = {}
        self._unused = trio.Event()
        self._released = trio.Event()
        self._turn = trio.Lock()
        self._noting: list[set[bytes]] = []

    def __contains__(self, cursor_id: bytes) -> bool:
        return cursor_id in self._readers

    def enter(self, cursor_id: bytes) -> None:
        """Count a batch that is being read from a cursor; not allowed while `is_held`.

        The reader must not wait for anything that may itself wait for a listing.
        """
        self._readers[cursor_id] = self._readers.get(cursor_id, 0) + 1

    def exit(self, cursor_id: bytes) -> None:
        """Count the batch as read."""
        for noted in self._noting:
            noted.add(cursor_id)
        others = self._readers.pop(cursor_id) - 1
        if others:
            self._readers[cursor_id] = others
        elif not self._readers:
            self._unused.set()

    async def wait_released(self) -> None:
        """Wait until a ``getMore`` may begin."""
        while self.is_held:
            await self._released.wait()

    @contextmanager
    def noting_batches(self) -> Iterator[Set[bytes]]:
        """Collect, during the block, the ids of cursors from which a batch has been read."""
        noted: set[bytes] = set()
        self._noting.append(noted)
        try:
            yield noted
        finally:
            self._noting = [each for each in self._noting if each is not noted]

    @asynccontextmanager
    async def held(self) -> AsyncIterator[Set[int]]:
        """Hold back new ``getMore`` commands during the block; yield the ids of cursors that are still in use."""
        async with self._turn:
            self.is_held, self._released, self._unused = True, trio.Event(), trio.Event()
            try:
                if self._readers:
                    with trio.move_on_after(SETTLE_SECONDS_MAX):
                        await self._unused.wait()
                yield {int.from_bytes(each, "little", signed=True) for each in self._readers}
            finally:
                self.is_held = False
                self._released.set()
                # Commands that were held back begin before the next block can hold them again.
                await trio.lowlevel.cancel_shielded_checkpoint()


_NEAREST: Final = {"$readPreference": {"mode": "nearest"}}
"""Allows a secondary to answer."""

_ALL_CURSORS: Final = {"$currentOp": {"allUsers": True, "idleCursors": True, "localOps": True}}

_LISTING_MS_MAX: Final = 60_000
"""Tolerance for cursors opened after their listing began, which have a later date than the listing."""


class OpenCursor(NamedTuple):
    """A cursor on mongod.

    Attributes:
        namespace: ``db.collection``.
        is_older: whether it matches the condition of the listing.
        is_begun: whether its pipeline has been executed at least in part; with ``batchSize: 0`` execution begins at the
            first ``getMore``.
        transaction: the ``lsid`` and number of its transaction, if any.
        session: the ``lsid`` in which it was opened, with its owner.
        times_out: whether mongod ends it after some idle minutes; the end of its session ends it anyway.
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
    """A moment that separates the cursors on one collection that are open now from cursors opened later.

    The first complete listing decides. The clock may have been set back since a cursor was opened.

    Attributes:
        open: ids of the open cursors; None until they have been listed.
    """

    __slots__ = ("open",)

    def __init__(self) -> None:
        self.open: frozenset[int] | None = None

    def older(self, listed: Iterable[OpenCursor]) -> list[OpenCursor]:
        """Return the cursors that were open at this moment."""
        wanted = [each for each in listed if each.is_older]
        if self.open is None:
            self.open = frozenset(each.id for each in wanted)
        return [each for each in wanted if each.id in self.open]


class OpenCursors:
    """The cursors of clients on the local mongod.

    Methods that list cursors raise CommandError if mongod refuses, and BackendError if it does not answer.

    Attributes:
        is_transaction_open: whether a transaction, given by its ``lsid`` and number, is open on this shard.
    """

    def __init__(self, mongod: LocalMongod) -> None:
        self.in_use = CursorsInUse()
        self.is_transaction_open: Callable[[Mapping[str, Any], int], bool] = lambda _lsid, _number: True
        self._mongod = mongod
        self._useless: set[int] = set()

    async def wait_closed(self, namespace: str, *, opened_until: Moment) -> None:
        """Wait until all cursors on a collection that were open at a moment are closed.

        mongod does not announce that a cursor is closed, so this polls, at increasing intervals.
        """
        backoff = Backoff(first_seconds=0.05, seconds_max=1.0)
        found = await self.older(namespace, opened_until=opened_until)
        while found:
            await self._end_useless(namespace, found)
            await backoff.pause()
            # A certain listing holds readers back, which is worthwhile only if this one shows no cursor.
            listed = await _listed(self._mongod.command, _on(namespace))
            visible = opened_until.older(each for each in listed if each.id not in self._useless)
            found = visible or await self.older(namespace, opened_until=opened_until)

    async def older(self, *namespaces: str, opened_until: Moment) -> list[OpenCursor]:
        """List the cursors on some collections that were open at a moment, except tailable ones and our own."""
        backoff = Backoff(first_seconds=0.01, seconds_max=0.1)
        while True:
            async with self.in_use.held() as in_use:
                found = await _listed(self._mongod.command, _on(*namespaces), also=in_use)
            if in_use <= {each.id for each in found}:
                return opened_until.older(each for each in found if each.id not in self._useless)
            await backoff.pause()

    async def note_gone(self, *namespaces: str) -> None:
        """Disregard the cursors that are open on collections which were dropped or renamed just now.

        mongod keeps an idle cursor until its next batch is requested, which fails. It shows only the name of a
        cursor's collection, so later the cursor could not be distinguished from cursors on a new collection. Call this
        before a new one of the name can be read.
        """
        if not namespaces:
            return
        if gone := {each.id for each in await self.older(*namespaces, opened_until=now())}:
            known = {each.to_bytes(8, "little", signed=True): each for each in self._useless}
            self._useless = gone | {known[each] for each in await self.still_open(known)}

    async def wait_closed_on(self, pool: Pool, namespace: str) -> None:
        """Wait until all cursors on a collection that are open now on another member's mongod are closed."""
        backoff = Backoff(first_seconds=0.05, seconds_max=5.0)
        present, wanted = now(), _on(namespace)
        # The member's readers cannot be held back, so one listing may miss a cursor whose batch is just beginning.
        present.older([each for _ in range(2) for each in await _listed(pool.command, wanted)])
        while any([present.older(await _listed(pool.command, wanted)) for _ in range(2)]):
            await backoff.pause()

    async def raw_commands(self, cursor_ids: Collection[int]) -> dict[int, bytes]:
        """Return the commands that opened the given cursors, by id; closed cursors are left out."""
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
        """Return the open ones among raw cursor ids; cursors that are being read count as open."""
        wanted = [Int64(int.from_bytes(each, "little", signed=True)) for each in cursor_ids]
        stages = [_ALL_CURSORS, {"$match": {"cursor.cursorId": {"$in": wanted}}}, {"$project": {"cursor.cursorId": 1}}]
        listing = {"aggregate": 1, "pipeline": stages, "cursor": {}, **_NEAREST}
        with self.in_use.noting_batches() as read:
            found = await DecodedCursor(self._mongod.command, "admin", listing).all_documents()
        listed = {int(each["cursor"]["cursorId"]).to_bytes(8, "little", signed=True) for each in found}
        # The listing may miss a cursor whose batch began during it.
        return listed | {each for each in cursor_ids if each in self.in_use or each in read}

    async def _end_useless(self, namespace: str, cursors: Iterable[OpenCursor]) -> None:
        """End cursors of finished transactions: mongod keeps them although no client can read them."""
        useless = [
            Int64(each.id)
            for each in cursors
            if each.transaction is not None and not self.is_transaction_open(*each.transaction)
        ]
        if useless:
            db, _, collection = namespace.partition(".")
            await self._mongod.command(db, {"killCursors": collection, "cursors": useless})


async def client_cursors(mongod: LocalMongod, *, opened_until: datetime) -> list[OpenCursor]:
    """List the cursors on clients' collections that were open at a time and still are, except tailable ones.

    Cursors on ``local``, ``config`` and ``admin`` are left out; other cursors of this daemon are included. A cursor
    from which a batch is being read may be missing.

    Args:
        mongod: the mongod; it shares this machine's clock.
        opened_until: the time. A creation date in the future means that the clock was set back since.

    Raises:
        CommandError: mongod refuses.
        BackendError: mongod does not answer.
    """
    is_internal = {"$regexMatch": {"input": "$ns", "regex": r"^(local|config|admin)\."}}
    opened = "$cursor.createdDate"
    is_in_future = {"$gt": [opened, {"$add": ["$$NOW", _LISTING_MS_MAX]}]}
    is_older = {"$or": [{"$lte": [opened, opened_until]}, is_in_future]}
    return await _listed(mongod.command, _wanted(is_older, {"$not": is_internal}))


def now() -> Moment:
    """Return the current moment."""
    return Moment()


def _on(*namespaces: str) -> dict[str, Any]:
    # A killed daemon may have left a clone's cursor open. It has no reader any more.
    is_own = {"$eq": ["$cursor.originatingCommand.comment", OWN_CURSOR_COMMENT]}
    return _wanted({"$in": ["$ns", list(namespaces)]}, {"$not": is_own})


def _wanted(*conditions: Mapping[str, Any]) -> dict[str, Any]:
    # Tailable cursors are left out. On a collection that can be sharded they belong to change streams, which read the
    # oplog and never end. Operations without a cursor have no cursor id.
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


logger = get_logger("shardd.orphans")

WAIT_SECONDS_MAX: Final = 10.0
"""Maximum wait of a ``getMore`` for inherited cursors to end."""


class InheritedCursors:
    """The cursors on one mongod that clients opened through an earlier process of this daemon."""

    def __init__(self, mongod: LocalMongod) -> None:
        self.are_gone = False
        self._mongod = mongod
        self._opened_until = datetime.now(UTC)
        self._gone = trio.Event()

    async def end(self) -> None:
        """End all inherited cursors as soon as mongod answers, then set `are_gone`."""
        backoff = Backoff(first_seconds=0.1, seconds_max=1.0)
        while not self.are_gone:
            try:
                await self._end_all()
                # A batch that the earlier process had just begun to read hides its cursor from one listing. No batch
                # has begun since, so the next listing shows it.
                await self._end_all()
            except (BackendError, CommandError) as error:
                logger.debug("Could not end the cursors of an earlier process", error=str(error))
                await backoff.pause()
            else:
                self.are_gone = True
        self._gone.set()

    async def wait_gone(self, request: Request) -> None:
        """Wait until all inherited cursors have ended, before a ``getMore``; CursorNotFound if that takes too long."""
        with trio.move_on_after(WAIT_SECONDS_MAX):
            await self._gone.wait()
            return
        cursor_id = decode_value(request.body, request.fields[b"getMore"])
        raise CommandError(ErrorCode.CursorNotFound, f"cursor id {cursor_id} not found")

    async def _end_all(self) -> None:
        found: defaultdict[str, list[Int64]] = defaultdict(list)
        for each in await client_cursors(self._mongod, opened_until=self._opened_until):
            found[each.namespace].append(Int64(each.id))
        for namespace, cursors in found.items():
            db, _, collection = namespace.partition(".")
            await self._mongod.command(db, {"killCursors": collection, "cursors": cursors})
            logger.info("Ended cursors of an earlier process", namespace=namespace, count=len(cursors))
