"""Fencing cursors: hiding an incoming range from older cursors, which have no filter for it.

Reading a cursor costs nothing extra until a range is received. The method of leaving out documents then depends on the
cursor:

- If its documents show their shard keys, the raw bytes of each batch are compared with the ranges.
- If they show their ``_id``, mongod looks up whether the document is outside of the range.
- A cursor that has not begun (``batchSize: 0``) is opened again, with a filter, for its first batch. A batch that was
  being computed is discarded, like a read without a reply.
- Any other cursor, such as one with a limit, has had a complete filter from the start (`cursor_kinds`). If that was not
  possible, its rest is read at once and kept for its client. The cursor is ended if the rest is too large to keep or
  cannot be read soon, because no migration waits for a reader.

A range that is received later is merged with the ranges that are already hidden. Cursors share the merged filters.
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

import bson
import trio
from bson.int64 import Int64

from shardwright.daemon.sidecar.mongod import LocalMongod, Upstream
from shardwright.shardd.local_mongod.local_collections import describe, name_of
from shardwright.shardd.orphans.cursor_kinds import Shown, may_return, shown_by
from shardwright.shardd.orphans.fenced_cursor import (
    POLL_SECONDS,
    FencedCursor,
    Hiding,
    HidingResult,
    Kept,
    cursor_number,
    is_well_formed,
    request_to_open_again,
    visible_documents,
)
from shardwright.shardd.orphans.filtered_commands import without_orphans
from shardwright.shardd.orphans.open_cursors import OpenCursor, OpenCursors, now
from shardwright.shardd.orphans.ownership_filter import OwnershipFilter
from shardwright.sharding.logical_sessions import NO_USER, SessionId
from shardwright.sharding.namespace import Namespace
from shardwright.wire import rawbson
from shardwright.wire.cursor_batch import RawBatch, id_in_reply
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.message import with_body
from shardwright.wire.rawbson import decode_document
from shardwright.wire.request import Request
from shardwright.wire.transport.client import response_body
from shardwright.wire.transport.cursor import RawCursor

if TYPE_CHECKING:
    from uuid import UUID

    from shardwright.daemon.users import UserName

logger = get_logger("shardd.orphans")

KEPT_BYTES_MAX: Final = 64 << 20
"""Limit for the documents kept for clients, over all cursors."""

KEPT_SECONDS: Final = 1800.0
"""Maximum idle time of a kept cursor that belongs to a session, unless the session ends earlier."""

IN_USE_SECONDS_MAX: Final = 0.2
"""Maximum wait of a migration for a batch of a cursor whose rest must be read; the same as for other reads."""

REST_SECONDS_MAX: Final = 1.0
"""Maximum time for a migration to read the rest of one cursor."""

RESTS_SECONDS_MAX: Final = 3.0
"""Maximum time for a migration to read the rests of all cursors. Few cursors need it."""

SWEEP_SECONDS: Final = 10.0

_TOO_LONG: Final = "more was left of it than can be kept"
_TOO_SLOW: Final = "what was left of it could not be read in time"
_INTERRUPTED: Final = "what was left of it could not be read"
_OF_SESSION: Final = ("lsid", "apiVersion", "apiStrict", "apiDeprecationErrors")
"""Fields in which a ``getMore`` and the command that opened its cursor must agree."""

_INT64: Final = Struct("<q")


class FencedCursors:
    """The fenced cursors of one mongod, by raw cursor id. `run` removes the entries of ended ones.

    Methods that access mongod raise CommandError if it refuses, and BackendError if it does not answer.
    """

    def __init__(self, mongod: LocalMongod, open_cursors: OpenCursors) -> None:
        self._mongod = mongod
        self._open_cursors = open_cursors
        self._fenced: dict[bytes, FencedCursor] = {}
        self._are_any = trio.Event()
        self._hiding = trio.Lock()

    def __contains__(self, cursor_id: bytes) -> bool:
        return cursor_id in self._fenced

    async def hide(self, namespace: str, hidden: OwnershipFilter) -> None:
        """Hide documents that will be written to some ranges from all cursors that are open now."""
        # A secondary that has just become primary may still be hiding a range when the next one arrives. Both would
        # read the same cursors ahead.
        async with self._hiding:
            await self._hide(namespace, hidden)

    async def _hide(self, namespace: str, hidden: OwnershipFilter) -> None:
        described = await describe(self._mongod, Namespace.parse(namespace))
        uuid = None if described is None else described.uuid
        until = trio.current_time() + IN_USE_SECONDS_MAX
        rests_until = trio.current_time() + RESTS_SECONDS_MAX
        merged: dict[OwnershipFilter, OwnershipFilter] = {}
        while True:
            listed, present = trio.current_time(), now()
            with self._open_cursors.in_use.noting_batches() as read:
                cursors = await self._open_cursors.older(namespace, opened_until=present)
                hiding = Hiding(
                    hidden, merged, await self._commands_of_deferred(cursors), read, listed, rests_until, uuid
                )
                results = [(each, await self._hide_from(each, hiding)) for each in cursors]
            if trio.current_time() >= until:
                for cursor in [each for each, result in results if result is HidingResult.IN_USE]:
                    await self._end(cursor, uuid, _TOO_SLOW)
                results = [each for each in results if each[1] is not HidingResult.IN_USE]
            if all(result is HidingResult.HIDDEN for _, result in results):
                return
            await trio.sleep(POLL_SECONDS)

    async def run(self) -> None:
        """Remove the entries of ended cursors until cancelled, because mongod does not announce that it ends one."""
        while True:
            await self._are_any.wait()
            await trio.sleep(SWEEP_SECONDS)
            try:
                await self.forget_ended()
            except (BackendError, CommandError) as error:
                logger.debug("Could not look for cursors that have ended", error=str(error))

    async def forget_ended(self) -> None:
        """Remove the entries of cursors that have ended on mongod, and of idle kept cursors."""
        sources = {each: fenced.substitute or each for each, fenced in self._fenced.items() if not fenced.is_held_here}
        still_open = await self._open_cursors.still_open(sources.values()) if sources else set()
        parameters = await self._mongod.command("admin", {"getParameter": 1, "cursorTimeoutMillis": 1})
        idle_seconds_max, present = float(parameters["cursorTimeoutMillis"]) / 1000, trio.current_time()
        for cursor_id, fenced in list(self._fenced.items()):
            if fenced.is_held_here:
                limit = idle_seconds_max if fenced.times_out else KEPT_SECONDS
                has_ended = present - fenced.last_used > limit
            else:
                source = fenced.substitute or cursor_id  # a mismatch means that it was replaced since
                has_ended = fenced.reading is None and sources.get(cursor_id) == source and source not in still_open
                has_ended = has_ended and fenced.substitute not in self._fenced  # its rest may be kept here
            if has_ended and self._fenced.get(cursor_id) is fenced:
                del self._fenced[cursor_id]
                if fenced.substitute is not None:
                    await self._kill_on_mongod(fenced.namespace, cursor_id)
        if not self._fenced:
            self._are_any = trio.Event()

    def forget_sessions(self, is_meant: Callable[[SessionId], bool]) -> None:
        """Remove the kept cursors of sessions that end; mongod ends their other cursors."""
        for cursor_id, fenced in list(self._fenced.items()):
            if fenced.is_held_here and fenced.session is not None and is_meant(fenced.session):
                del self._fenced[cursor_id]

    # Batches

    def is_being_read(self, cursor_id: bytes) -> bool:
        """Whether the rest of a cursor is being read ahead."""
        fenced = self._fenced.get(cursor_id)
        return fenced is not None and fenced.reading is not None

    async def wait_read(self, cursor_id: bytes) -> None:
        """Wait until a cursor is not being read ahead."""
        fenced = self._fenced.get(cursor_id)
        if fenced is not None and fenced.reading is not None:
            await fenced.reading.wait()

    def check_reader(self, cursor_id: bytes, request: Request, user: "UserName | None") -> None:
        """Refuse a ``getMore`` as `FencedCursor.check_reader` does."""
        fenced = self._fenced.get(cursor_id)
        if fenced is not None:
            fenced.check_reader(request, user)

    def is_substituted(self, cursor_id: bytes) -> bool:
        """Whether another cursor is read in place of this one."""
        fenced = self._fenced.get(cursor_id)
        return fenced is not None and fenced.command is not None

    async def substitute(self, upstream: Upstream, cursor_id: bytes) -> bytes:
        """Return the id of the substitute for a cursor that had not begun, opened on first use."""
        fenced = self._fenced[cursor_id]
        fenced.last_used = trio.current_time()
        if fenced.substitute is None:
            assert fenced.command is not None
            request = request_to_open_again(fenced.command)
            namespace = Namespace.parse(fenced.namespace)
            while fenced.substitute is None:
                hidden = fenced.hidden
                assert hidden is not None
                filtered = await without_orphans(request, self._mongod, namespace, hidden)
                frame = await upstream.forward(filtered.message.frame, 0)
                assert frame is not None
                opened = _INT64.pack(RawBatch(frame).cursor_id)
                try:
                    await self._check_collection(cursor_id, fenced)  # opened by name, so it may be another one
                except CommandError:
                    await self._kill_on_mongod(fenced.namespace, opened)
                    raise
                if fenced.substitute is None and fenced.hidden is hidden:
                    fenced.substitute, fenced.opened = opened, trio.current_time()
                else:  # another range is arriving, or another `getMore` has opened a substitute
                    await self._kill_on_mongod(fenced.namespace, opened)
            logger.info("Opened a cursor again because a range was received", namespace=fenced.namespace)
        return fenced.substitute

    async def with_own_id(self, cursor_id: bytes, substitute: bytes, frame: bytes) -> bytes:
        """Restore the client's cursor id in a substitute's reply, and remove a substitute that has ended.

        Raises:
            CommandError: the reply's error; CursorInUse does not end the cursor.
        """
        span = id_in_reply(frame)
        if span is not None and any(frame[span[2] : span[3]]):  # it may have been killed since, as on mongod
            return b"".join((frame[: span[2]], cursor_id, frame[span[3] :]))
        error = None if span is not None else CommandError.from_reply(decode_document(response_body(frame)))
        if error is not None:
            error.message = error.message.replace(str(cursor_number(substitute)), str(cursor_number(cursor_id)))
        if error is not None and error.code == ErrorCode.CursorInUse:
            raise error
        fenced = self._fenced.get(cursor_id)
        if fenced is not None:
            fenced.substitute = None
            await self.kill(cursor_id)
            await self._kill_on_mongod(fenced.namespace, cursor_id)
        if error is not None:
            raise error
        return frame

    async def answer(self, cursor_id: bytes, request: Request) -> bytes | None:
        """Answer a ``getMore`` that needs no read of the collection; None for all others.

        Raises:
            CommandError: QueryPlanKilled, the cursor was ended or its collection dropped; CursorNotFound.
        """
        fenced = self._fenced.get(cursor_id)
        if fenced is None or not is_well_formed(request):
            return None
        fenced.last_used = trio.current_time()
        fenced.check_not_ended()
        if fenced.kept is None:
            return None
        await self._check_collection(cursor_id, fenced)
        reply = fenced.kept.answer(cursor_id, request)
        if not fenced.kept.documents:
            del self._fenced[cursor_id]
        return reply

    async def without_hidden(self, cursor_id: bytes, frame: bytes) -> tuple[bytes, bool]:
        """Remove hidden documents from the reply to a ``getMore`` of a fenced cursor.

        Returns:
            The reply frame, and whether it became empty, so that the next batch must be fetched.

        Raises:
            CommandError: mongod refuses to look up the documents; QueryPlanKilled, the cursor was ended.
        """
        fenced = self._fenced.get(cursor_id)
        if fenced is None:
            return frame, False  # it has been killed
        fenced.check_not_ended()
        body = response_body(frame)
        cursor = rawbson.find(body, b"cursor")
        if cursor is None or fenced.hidden is None:  # an error: mongod has closed the cursor, or the client retries
            return frame, False
        value = body[cursor[2] : cursor[3]]
        fields = rawbson.index(value)
        batch = fields[b"nextBatch"]
        documents = rawbson.array_documents(value, batch)
        visible = await self._visible(fenced, documents)
        is_over = not any(value[fields[b"id"][2] : fields[b"id"][3]])
        if is_over:
            self._fenced.pop(cursor_id, None)
        if len(visible) == len(documents):
            return frame, False
        value = rawbson.with_value(value, batch, rawbson.array_of_documents(visible))
        return with_body(frame, rawbson.with_value(body, cursor, value)), not visible and not is_over

    async def _visible(self, fenced: FencedCursor, documents: list[bytes]) -> list[bytes]:
        if fenced.hidden is None:
            return documents
        return await visible_documents(self._mongod, fenced.namespace, fenced.hidden, fenced.shown, documents)

    async def _check_collection(self, cursor_id: bytes, fenced: FencedCursor) -> None:
        """Refuse further reads of a cursor that was killed, or whose collection was dropped or renamed.

        mongod kills its cursors itself. But it has no record of documents kept here, and opens a substitute on any
        collection of the same name.
        """
        uuid, namespace = fenced.collection_uuid, Namespace.parse(fenced.namespace)
        name = None if uuid is None else await name_of(self._mongod, namespace.db, uuid)
        if self._fenced.get(cursor_id) is not fenced:
            raise CommandError(ErrorCode.CursorNotFound, f"cursor id {cursor_number(cursor_id)} not found")
        if name != namespace.collection:
            await self.kill(cursor_id)
            await self._kill_on_mongod(fenced.namespace, cursor_id)
            raise CommandError(ErrorCode.QueryPlanKilled, f"collection dropped. UUID {uuid}")

    # Ends

    async def after_kill(self, reply: bytes | None, user: "UserName | None") -> bytes | None:
        """Remove the cursors that ``killCursors`` has ended, and end those that are kept here.

        Returns:
            The reply, with the cursors ended here among the killed ones.
        """
        if reply is None or not self._fenced:
            return reply
        body: dict[str, Any] = bson.decode(response_body(reply))
        for number in body.get("cursorsKilled", ()):
            await self.kill(_INT64.pack(number))
        unknown, own = body.get("cursorsNotFound", ()), []
        for number in unknown:
            fenced = self._fenced.get(_INT64.pack(number))
            if fenced is not None and fenced.reading is None and fenced.may_be_killed_by(user):
                await self.kill(_INT64.pack(number))
                own.append(number)
        if not own:
            return reply
        body["cursorsKilled"] += own
        body["cursorsNotFound"] = [each for each in unknown if each not in own]
        return with_body(reply, bson.encode(body))

    async def kill(self, cursor_id: bytes) -> None:
        """Remove a cursor and end its chain of substitutes."""
        fenced = self._fenced.pop(cursor_id, None)
        while fenced is not None and fenced.substitute is not None:
            await self._kill_on_mongod(fenced.namespace, fenced.substitute)
            fenced = self._fenced.pop(fenced.substitute, None)

    async def _end(self, cursor: OpenCursor, collection_uuid: "UUID | None", reason: str) -> None:
        namespace = cursor.namespace
        logger.warning("Killed a cursor opened before a range was received", namespace=namespace, error=reason)
        self._note(cursor, collection_uuid).ended = reason
        await self._kill_on_mongod(namespace, _INT64.pack(cursor.id))

    async def _kill_on_mongod(self, namespace: str, cursor_id: bytes) -> None:
        db, _, collection = namespace.partition(".")
        await self._mongod.command(db, {"killCursors": collection, "cursors": [Int64(cursor_number(cursor_id))]})

    # Hiding

    def _note(self, cursor: OpenCursor, collection_uuid: "UUID | None") -> FencedCursor:
        """Return the entry of a cursor, created if necessary."""
        cursor_id = _INT64.pack(cursor.id)
        fenced = self._fenced.get(cursor_id)
        if fenced is None:
            lsid = cursor.session
            session = None if lsid is None else SessionId(bytes(lsid["id"]), bytes(lsid.get("uid", NO_USER)))
            fenced = FencedCursor(cursor.namespace, collection_uuid, session, cursor.times_out)
            self._fenced[cursor_id] = fenced
            self._are_any.set()
        return fenced

    async def _commands_of_deferred(self, cursors: Collection[OpenCursor]) -> Mapping[int, bytes]:
        """Return the raw commands of the cursors that have not begun, by id, from a single listing."""
        wanted = [each.id for each in cursors if not each.is_begun and _INT64.pack(each.id) not in self._fenced]
        return await self._open_cursors.raw_commands(wanted) if wanted else {}

    async def _hide_from(self, cursor: OpenCursor, hiding: Hiding) -> HidingResult:
        """Hide ranges from a cursor."""
        cursor_id, hidden = _INT64.pack(cursor.id), hiding.hidden
        fenced = self._fenced.get(cursor_id)
        if fenced is not None and fenced.collection_uuid != hiding.collection_uuid:
            return HidingResult.HIDDEN  # its collection was dropped, so mongod refuses its next batch
        if fenced is not None and fenced.ended is not None:
            await self._kill_on_mongod(cursor.namespace, cursor_id)
            return HidingResult.HIDDEN
        if fenced is not None and fenced.command is not None:
            if fenced.opened is not None:  # the ranges are hidden from a listed substitute by its own entry
                return HidingResult.HIDDEN if fenced.opened <= hiding.listed else HidingResult.NOT_LISTED
            fenced.hidden = hiding.merged_with(fenced.hidden)
            return HidingResult.HIDDEN
        if not may_return(cursor.command, hidden, is_begun=cursor.is_begun, returned=cursor.returned):
            return HidingResult.HIDDEN
        if not cursor.is_begun:
            command = hiding.commands.get(cursor.id)
            if command is None:
                return HidingResult.HIDDEN  # it has been closed
            if cursor_id not in hiding.read:
                fenced = self._note(cursor, hiding.collection_uuid)
                fenced.hidden, fenced.command = hiding.merged_with(fenced.hidden), command
                return HidingResult.HIDDEN
            if not may_return(cursor.command, hidden):
                return HidingResult.HIDDEN
        # The shard key may have been refined since another range was hidden.
        shown = shown_by(cursor.command, hidden.pattern)
        if shown is Shown.NEITHER:
            return await self._try_keep(cursor, hiding)
        fenced = self._note(cursor, hiding.collection_uuid)
        fenced.hidden, fenced.shown = hiding.merged_with(fenced.hidden), shown
        return HidingResult.HIDDEN

    async def _try_keep(self, cursor: OpenCursor, hiding: Hiding) -> HidingResult:
        """Read the rest of a cursor, unless its next batch is being read."""
        cursor_id = _INT64.pack(cursor.id)
        if cursor_id in self._open_cursors.in_use:
            return HidingResult.IN_USE
        is_new = cursor_id not in self._fenced
        fenced = self._note(cursor, hiding.collection_uuid)
        fenced.reading = trio.Event()
        kept, is_untouched = Kept(), False
        try:
            with trio.move_on_at(min(hiding.rests_until, trio.current_time() + REST_SECONDS_MAX)) as patience:
                if await self._read_rest(cursor, fenced, kept):
                    fenced.kept = kept
                    logger.info("Read the rest of a cursor", namespace=cursor.namespace, documents=len(kept.documents))
                else:
                    await self._end(cursor, hiding.collection_uuid, _TOO_LONG)
            if patience.cancelled_caught and fenced.ended is None:
                await self._end(cursor, hiding.collection_uuid, _TOO_SLOW)
        except CommandError as error:
            # These codes occur only before anything has been read.
            is_untouched = error.code in (ErrorCode.CursorInUse, ErrorCode.CursorNotFound)
            if error.code == ErrorCode.CursorInUse:
                return HidingResult.IN_USE
            logger.info("Could not read the rest of a cursor", namespace=cursor.namespace, error=str(error))
        finally:
            fenced.reading.set()
            fenced.reading = None
            if is_untouched:
                if is_new:
                    self._fenced.pop(cursor_id, None)
            elif not fenced.is_held_here:
                # Some of it may have been read. A client that continued on mongod would miss that part.
                fenced.ended = _INTERRUPTED
        return HidingResult.HIDDEN

    async def _read_rest(self, cursor: OpenCursor, fenced: FencedCursor, kept: Kept) -> bool:
        room = KEPT_BYTES_MAX - sum(each.kept.size for each in self._fenced.values() if each.kept is not None)
        db, _, collection = cursor.namespace.partition(".")
        same = {name: cursor.command[name] for name in _OF_SESSION if name in cursor.command}
        reading = RawCursor(self._mongod.pool.exchange, db, {}, options=same).resume(cursor.id, collection)
        return await kept.read_all(reading, partial(self._visible, fenced), room)
