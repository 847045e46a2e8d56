"""Cursors that are older than an incoming range: they must not return documents that are written to it.

They were opened without a filter for the range. It costs nothing to read a cursor as long as no range has been received
since it was opened. Afterwards it depends on the cursor how the documents are left out:

- if its documents show their shard keys, these decide, in the raw bytes of each batch;
- if they show their ``_id``, it decides whether mongod finds the document outside of the range;
- a cursor that has not begun (``batchSize: 0``) is opened again, with a filter, when its first batch is wanted. A
  batch that was being computed is discarded, as a read without a reply is;
- what is left of any other cursor, such as one with a limit, is read at once, before the first document arrives, and
  kept for its client. Cursors that may have much left are opened with a complete filter (`cursor_openings`), so that
  they are not among these. One that has more left than may be kept is ended.
"""

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Final

import trio
from bson.int64 import Int64

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.daemon.sidecar.upstream import Upstream
from shardwright.shardd.orphans.cursor_kinds import Shown, may_return, shown_by
from shardwright.shardd.orphans.filtered_commands import without_orphans
from shardwright.shardd.orphans.kept_documents import Kept, taken_from, without_batch
from shardwright.shardd.orphans.open_cursors import OpenCursor, OpenCursors, now
from shardwright.shardd.orphans.ownership_filter import OwnershipFilter
from shardwright.sharding.namespace import Namespace
from shardwright.wire import rawbson
from shardwright.wire.cursor_batch import RawBatch
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.logger import get_logger
from shardwright.wire.message import OpMsg, op_msg, with_body
from shardwright.wire.request import Request
from shardwright.wire.transport.client import response_body
from shardwright.wire.transport.cursor import RawCursor

logger = get_logger("shardd.orphans")

KEPT_BYTES_MAX: Final = 64 << 20
"""How much of all cursors may be kept for their clients."""

KEPT_SECONDS: Final = 1800.0
"""How long an abandoned cursor is remembered: as long as a session."""

BATCH_SECONDS_MAX: Final = 5.0
"""How long a migration waits for the batch of a cursor whose rest is going to be read."""

_POLL_SECONDS: Final = 0.05
_IDS_MAX: Final = 10_000
_ID_BYTES_MAX: Final = 8 << 20
"""How many are looked up at once."""

_TOO_LONG: Final = "more was left of it than can be kept"
_INTERRUPTED: Final = "what was left of it could not be read"
_OF_SESSION: Final = ("lsid", "apiVersion", "apiStrict", "apiDeprecationErrors")
"""What a ``getMore`` has to have in common with the command that opened the cursor."""

_CONCERNS: Final[Mapping[bytes, bytes]] = {
    b"readConcern": rawbson.encode_elements({"readConcern": {}}),
    b"writeConcern": rawbson.encode_elements({"writeConcern": {"w": 1}}),
}
_INT64: Final = Struct("<q")


@dataclass(slots=True)
class _Older:
    """What is to be done with the batches of a cursor.

    Attributes:
        namespace: the collection.
        hidden: the ranges to leave out.
        shown: what the cursor's documents show.
        command: the command to open it again with, if it has not begun.
        substitute: the raw id of the cursor that was opened in its place.
        opened: when that was, on trio's clock.
        reading: set when what is left of it has been read; None if that is not being done.
        kept: what is left of it.
        ended: why it was ended.
        last_used: on trio's clock.
    """

    namespace: str
    hidden: tuple[OwnershipFilter, ...] = ()
    shown: Shown = Shown.NEITHER
    command: bytes | None = None
    substitute: bytes | None = None
    opened: float | None = None
    reading: trio.Event | None = None
    kept: Kept | None = None
    ended: str | None = None
    last_used: float = field(default_factory=trio.current_time)


class OlderCursors:
    """The older cursors of one mongod, by the raw bytes of their ids.

    Args:
        mongod: the mongod.
        open_cursors: finds them.
    """

    def __init__(self, mongod: LocalMongod, open_cursors: OpenCursors) -> None:
        self._mongod = mongod
        self._open_cursors = open_cursors
        self._older: dict[bytes, _Older] = {}
        self._hiding = trio.Lock()

    def __contains__(self, cursor_id: bytes) -> bool:
        return cursor_id in self._older

    async def hide(self, namespace: str, hidden: OwnershipFilter) -> None:
        """Hide documents that will be written to some ranges from all cursors that are open now.

        Args:
            namespace: the collection.
            hidden: the ranges.

        Raises:
            CommandError: mongod refuses.
            BackendError: mongod does not answer.
        """
        # A secondary that has just become primary may still be hiding a range while the next one arrives: both would
        # read ahead from the same cursors.
        async with self._hiding:
            await self._hide(namespace, hidden)

    async def _hide(self, namespace: str, hidden: OwnershipFilter) -> None:
        deadline = trio.current_time() + BATCH_SECONDS_MAX
        while True:
            began, present = trio.current_time(), now()
            with self._open_cursors.in_use.noting_batches() as read:
                cursors = await self._open_cursors.older(namespace, opened_until=present)
                self._forget_closed(namespace, {_INT64.pack(each.id) for each in cursors})
                commands = await self._commands_of_deferred(cursors)
                busy = [each for each in cursors if not await self._hide_from(each, hidden, commands, read, began)]
            if not busy:
                return
            if trio.current_time() >= deadline:
                for each in busy:
                    await self._end(each, "it has a limit, and a batch was taking long")
                return
            await trio.sleep(_POLL_SECONDS)

    # Batches

    def is_being_read(self, cursor_id: bytes) -> bool:
        """Whether what is left of a cursor is being read ahead."""
        older = self._older.get(cursor_id)
        return older is not None and older.reading is not None

    async def wait_read(self, cursor_id: bytes) -> None:
        """Return when nothing is being read ahead from a cursor."""
        older = self._older.get(cursor_id)
        if older is not None and older.reading is not None:
            await older.reading.wait()

    def is_substituted(self, cursor_id: bytes) -> bool:
        """Whether another cursor is read in place of this one."""
        older = self._older.get(cursor_id)
        return older is not None and older.command is not None

    async def substitute(self, upstream: Upstream, cursor_id: bytes) -> bytes:
        """The id of the cursor to read in place of one that had not begun; it is opened with the first batch.

        Args:
            upstream: the client's connection to mongod.
            cursor_id: the cursor.

        Raises:
            CommandError: mongod refuses.
            BackendError: mongod does not answer.
        """
        older = self._older[cursor_id]
        older.last_used = trio.current_time()
        if older.substitute is None:
            assert older.command is not None
            request = Request(OpMsg(op_msg(older.command, request_id=next_request_id())))
            # mongod requires them from another mongod, which may be the client.
            for name, concern in _CONCERNS.items():
                if name not in request.fields and (name == b"readConcern" or request.name == "aggregate"):
                    request = request.with_body(rawbson.append(request.body, concern))
            namespace, count = Namespace.parse(older.namespace), 0
            while older.substitute is None:
                for each in older.hidden[count:]:
                    request = await without_orphans(request, self._mongod, namespace, each)
                count = len(older.hidden)
                frame = await upstream.forward(request.message.frame, 0)
                assert frame is not None
                opened = _INT64.pack(RawBatch(frame).cursor_id)
                if self._older.get(cursor_id) is not older:  # the client has killed it
                    await self._kill_on_mongod(older.namespace, opened)
                    (number,) = _INT64.unpack(cursor_id)
                    raise CommandError(ErrorCode.CursorNotFound, f"cursor id {number} not found")
                if older.substitute is None and count == len(older.hidden):
                    older.substitute, older.opened = opened, trio.current_time()
                else:  # another range is going to be received, or another `getMore` has opened it
                    await self._kill_on_mongod(older.namespace, opened)
            logger.info("Opened a cursor again because a range was received", namespace=older.namespace)
        return older.substitute

    async def with_own_id(self, cursor_id: bytes, frame: bytes) -> bytes:
        """The reply of a substitute, with the id that the client knows; forgets the substitute if it has ended."""
        older = self._older.get(cursor_id)
        span = _id_of(frame)
        if older is None:
            return frame  # it has been killed
        if span is not None and any(frame[span[2] : span[3]]):
            return b"".join((frame[: span[2]], cursor_id, frame[span[3] :]))
        older.substitute = None
        await self.kill(cursor_id)
        await self._kill_on_mongod(older.namespace, cursor_id)
        return frame

    def answer(self, cursor_id: bytes, request: Request) -> bytes | None:
        """The reply to a ``getMore`` that mongod need not be asked for; None if it must be.

        Raises:
            CommandError: QueryPlanKilled, the cursor was ended.
        """
        older = self._older.get(cursor_id)
        if older is None:
            return None
        older.last_used = trio.current_time()
        if older.ended is not None:
            raise CommandError(
                ErrorCode.QueryPlanKilled,
                f"a range of the collection was received after the cursor was opened, and {older.ended}",
            )
        if older.kept is None:
            return None
        batch = taken_from(older.kept, request.get(b"batchSize") or 0)
        if not older.kept.documents:
            del self._older[cursor_id]
        body = older.kept.reply
        cursor = rawbson.find(body, b"cursor")
        assert cursor is not None
        value = body[cursor[2] : cursor[3]]
        fields = rawbson.index(value)
        if older.kept.documents:
            at = fields[b"id"][2]
            value = b"".join((value[:at], cursor_id, value[at + len(cursor_id) :]))
        value = rawbson.with_value(value, fields[b"nextBatch"], rawbson.array_of_documents(batch))
        body = rawbson.with_value(body, cursor, value)
        return op_msg(body, request_id=next_request_id(), response_to=request.message.request_id)

    async def without_hidden(self, cursor_id: bytes, frame: bytes) -> tuple[bytes, bool]:
        """The reply to a ``getMore`` of such a cursor, without hidden documents.

        Returns:
            The frame of the reply, and whether it is empty so that another batch has to be fetched.

        Raises:
            CommandError: mongod does not say which documents are hidden.
            BackendError: mongod does not answer.
        """
        older = self._older.get(cursor_id)
        if older is None:
            return frame, False  # it has been killed
        body = response_body(frame)
        cursor = rawbson.find(body, b"cursor")
        if cursor is None:  # an error: mongod has closed the cursor, or the client tries again
            return frame, False
        value = body[cursor[2] : cursor[3]]
        fields = rawbson.index(value)
        batch = fields[b"nextBatch"]
        documents = rawbson.array_documents(value, batch)
        if older.shown is Shown.KEY:
            kept = [document for document in documents if not any(each.covers(document) for each in older.hidden)]
        else:
            kept = await self._still_owned(older, documents)
        is_over = not any(value[fields[b"id"][2] : fields[b"id"][3]])
        if is_over:
            self._older.pop(cursor_id, None)
        if len(kept) == len(documents):
            return frame, False
        value = rawbson.with_value(value, batch, rawbson.array_of_documents(kept))
        return with_body(frame, rawbson.with_value(body, cursor, value)), not kept and not is_over

    async def _still_owned(self, older: _Older, documents: list[bytes]) -> list[bytes]:
        """Those documents that mongod has outside of the hidden ranges.

        One that is not found has been deleted. It may have been hidden before that, so it is not returned.
        """
        ids = [_id_in(each) for each in documents]
        wanted = sorted({each for each in ids if each is not None})
        found: set[bytes] = set()
        namespace = Namespace.parse(older.namespace)
        for some in _in_groups(wanted):
            found |= await self._owned_ids(namespace, older.hidden, some)
        return [document for document, each in zip(documents, ids, strict=True) if each in found]

    async def _owned_ids(
        self, namespace: Namespace, hidden: Collection[OwnershipFilter], ids: list[bytes]
    ) -> set[bytes]:
        """Look up which ids, each as type and value, belong to documents outside of the hidden ranges.

        mongod compares as the collection does, so that it can use the index; here, the bytes have to be the same.
        """
        elements = [rawbson.element(b"%d" % at, each[0], each[1:]) for at, each in enumerate(ids)]
        among = rawbson.wrap_value(rawbson.ARRAY, rawbson.from_elements(b"".join(elements)), b"$in")
        query = rawbson.element(b"_id", rawbson.OBJECT, among)
        query += b"".join([each.element(each.default_collation) for each in hidden])
        search: dict[str, Any] = {
            "find": namespace.collection,
            "filter": rawbson.raw_document(rawbson.from_elements(query)),
            "projection": {"_id": 1},
            "batchSize": len(ids) + 1,
            "$readPreference": {"mode": "nearest"},
        }
        cursor = RawCursor(self._mongod.pool.exchange, namespace.db, search)
        return {found for document in await cursor.all_documents() if (found := _id_in(document)) is not None}

    # Ends

    async def kill_of(self, request: Request) -> None:
        """Forget the cursors that a client kills.

        Raises:
            BackendError: mongod does not answer.
        """
        cursors = request.fields.get(b"cursors")
        if not self._older or cursors is None or cursors[0] != rawbson.ARRAY:
            return
        for _, span in list(rawbson.spans(request.body, cursors[2])):
            await self.kill(request.raw(span))

    async def kill(self, cursor_id: bytes) -> None:
        """Forget a cursor, and end the one that was opened in its place."""
        older = self._older.pop(cursor_id, None)
        if older is not None and older.substitute is not None:
            await self._kill_on_mongod(older.namespace, older.substitute)

    async def _end(self, cursor: OpenCursor, reason: str) -> None:
        namespace = cursor.namespace
        logger.warning("Killed a cursor opened before a range was received", namespace=namespace, error=reason)
        older = self._older.setdefault(_INT64.pack(cursor.id), _Older(namespace))
        older.ended = reason
        await self._kill_on_mongod(namespace, _INT64.pack(cursor.id))

    async def _kill_on_mongod(self, namespace: str, cursor_id: bytes) -> None:
        db, _, collection = namespace.partition(".")
        (number,) = _INT64.unpack(cursor_id)
        await self._mongod.command(db, {"killCursors": collection, "cursors": [Int64(number)]})

    def _forget_closed(self, namespace: str, still_open: Collection[bytes]) -> None:
        abandoned = trio.current_time() - KEPT_SECONDS
        for cursor_id, older in list(self._older.items()):
            is_closed = older.namespace == namespace and cursor_id not in still_open
            if older.kept is not None or older.ended is not None or older.substitute is not None:
                is_closed = older.last_used < abandoned  # mongod does not know any more whether it is open
            if is_closed:
                del self._older[cursor_id]

    # Hiding

    async def _commands_of_deferred(self, cursors: Collection[OpenCursor]) -> Mapping[int, bytes]:
        """The raw commands of the cursors that have not begun, by their ids: one listing for all of them."""
        wanted = [each.id for each in cursors if not each.is_begun and _INT64.pack(each.id) not in self._older]
        return await self._open_cursors.raw_commands(wanted) if wanted else {}

    async def _hide_from(
        self,
        cursor: OpenCursor,
        hidden: OwnershipFilter,
        commands: Mapping[int, bytes],
        read: Set[bytes],
        listed: float,
    ) -> bool:
        """Hide ranges from a cursor; False if its next batch is being read, so that it has to be tried again.

        Args:
            cursor: the cursor.
            hidden: the ranges.
            commands: the commands of those that have not begun.
            read: the cursors that have returned a batch since they were listed.
            listed: when the listing began, on trio's clock.
        """
        cursor_id = _INT64.pack(cursor.id)
        older = self._older.get(cursor_id)
        if older is not None and older.command is not None:
            if older.opened is not None:
                return older.opened <= listed  # else the substitute has not been listed
            if hidden not in older.hidden:
                older.hidden = (*older.hidden, hidden)
            return True
        if older is not None and older.ended is not None:
            await self._kill_on_mongod(cursor.namespace, cursor_id)
            return True
        if not may_return(cursor.command, hidden, is_begun=cursor.is_begun):
            return True
        if not cursor.is_begun:
            command = commands.get(cursor.id)
            if command is None:
                return True  # it has been closed
            if cursor_id not in read:
                self._older[cursor_id] = _Older(cursor.namespace, (hidden,), command=command)
                return True
            if not may_return(cursor.command, hidden):
                return True
        shown = shown_by(cursor.command, hidden.pattern)
        if shown is Shown.NEITHER:
            return await self._try_keep(cursor)
        older = self._older.get(cursor_id)
        if older is None:
            older = self._older[cursor_id] = _Older(cursor.namespace, shown=shown)
        if hidden not in older.hidden:
            older.hidden = (*older.hidden, hidden)
        return True

    async def _try_keep(self, cursor: OpenCursor) -> bool:
        """Read what is left of a cursor; False if its next batch is being read."""
        cursor_id = _INT64.pack(cursor.id)
        if cursor_id in self._open_cursors.in_use:
            return False
        older = self._older[cursor_id] = _Older(cursor.namespace, reading=trio.Event())
        is_untouched = False
        try:
            await self._keep(cursor, older)
        except CommandError as error:
            is_untouched = error.code in (ErrorCode.CursorInUse, ErrorCode.CursorNotFound)
            if error.code == ErrorCode.CursorInUse:
                return False
            logger.info("Could not read the rest of a cursor", namespace=cursor.namespace, error=str(error))
        finally:
            assert older.reading is not None
            older.reading.set()
            older.reading = None
            if is_untouched:
                self._older.pop(cursor_id, None)
            elif older.kept is None and older.ended is None:
                # Some of it may have been read; a client that read on from mongod would miss that.
                older.ended = _INTERRUPTED
        return True

    async def _keep(self, cursor: OpenCursor, older: _Older) -> None:
        room = KEPT_BYTES_MAX - sum(each.kept.size for each in self._older.values() if each.kept is not None)
        db, _, collection = cursor.namespace.partition(".")
        same = {name: cursor.command[name] for name in _OF_SESSION if name in cursor.command}
        reading = RawCursor(self._mongod.pool.exchange, db, {}, options=same).resume(cursor.id, collection)
        documents: deque[bytes] = deque()
        size, frame = 0, b""
        async for batch in reading:
            found, frame = batch.documents(), batch.frame
            documents += found
            size += sum(map(len, found))
            if size > room and not reading.is_exhausted:
                await self._end(cursor, _TOO_LONG)
                return
        older.kept = Kept(without_batch(response_body(frame)), documents, size)
        logger.info("Read the rest of a cursor", namespace=cursor.namespace, documents=len(documents))


def _in_groups(ids: list[bytes]) -> Iterator[list[bytes]]:
    """The ids in groups that fit into one command each."""
    group: list[bytes] = []
    size = 0
    for each in ids:
        if group and (len(group) == _IDS_MAX or size + len(each) > _ID_BYTES_MAX):
            yield group
            group, size = [], 0
        group.append(each)
        size += len(each)
    if group:
        yield group


def _id_in(document: bytes) -> bytes | None:
    """The type and value of a document's ``_id``."""
    span = rawbson.find(document, b"_id")
    return None if span is None else bytes((span[0],)) + document[span[2] : span[3]]


def _id_of(frame: bytes) -> rawbson.Span | None:
    """Where the cursor's id is in the frame of a reply; None in an error."""
    at = len(frame) - len(response_body(frame))
    cursor = rawbson.find(frame, b"cursor", at)
    return None if cursor is None or cursor[0] != rawbson.OBJECT else rawbson.index(frame, cursor[2]).get(b"id")
