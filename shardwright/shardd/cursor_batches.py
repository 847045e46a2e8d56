"""`getMore` on the local mongod, without the ranges that arrived after a cursor was opened.

**Further namespaces** (`InvolvedCursors`). A ``getMore`` carries no version. A cursor on one collection does not need
one, because it continues with the documents that it began with. But a pipeline opens its other collections again for
each document, and would miss documents that have moved to other shards. So the versions of these collections are
checked before each batch, and the batch is counted as a read of them.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from bson import Int64

from shardwright.daemon.sidecar.mongod import Upstream
from shardwright.shardd.operations.admission import Admission, Entry
from shardwright.shardd.orphans.open_cursors import CursorsInUse
from shardwright.shardd.shard_server import ShardServer
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.message import OpMsg
from shardwright.wire.rawbson import INT64, OBJECT, decode_value, index
from shardwright.wire.request import Request
from shardwright.wire.transport.client import Begun, Connection
from shardwright.wire.transport.reactor import in_own_task, may_run_in_reactor

if TYPE_CHECKING:
    from shardwright.shardd.operations.involvement import InvolvedNamespace

logger = get_logger("shardd.operations")

_FORGOTTEN_AT_FIRST: Final = 1_000
"""Number of cursors at which ended ones are discarded; after that, whenever twice the remaining number is reached.

mongod does not announce that it ends a cursor, and a client may kill one. An open cursor must never be discarded: its
next batches would silently miss documents that have moved.
"""

StillOpen = Callable[[Collection[bytes]], Awaitable[set[bytes]]]


class InvolvedCursors:
    """The open cursors that read further namespaces; `still_open` is `OpenCursors.still_open`."""

    def __init__(self, admission: Admission, still_open: StillOpen) -> None:
        self._admission = admission
        self._still_open = still_open
        self._namespaces: dict[int, tuple[InvolvedNamespace, ...]] = {}
        self._forget_at = _FORGOTTEN_AT_FIRST

    @may_run_in_reactor
    async def observe(self, reply: bytes | None, entries: Sequence[Entry]) -> None:
        """Record the cursor that an operation has opened, if any."""
        cursor_id = _cursor_id(reply)
        if cursor_id:
            # The router's versions no longer matter: the namespaces now only have to be unsharded and on this shard.
            self._namespaces[cursor_id] = tuple(replace(entry.involved, received=None, view=None) for entry in entries)
            if len(self._namespaces) >= self._forget_at:
                await in_own_task()
                await self._forget_ended()

    def find(self, request: Request) -> int:
        """Return the id of the cursor that a request reads if it is recorded here, else 0."""
        if not self._namespaces or request.name != "getMore":
            return 0
        span = request.fields[b"getMore"]
        cursor_id = int.from_bytes(request.body[span[2] : span[3]], "little", signed=True) if span[0] == INT64 else 0
        return cursor_id if cursor_id in self._namespaces else 0

    def has(self, cursor_id: bytes) -> bool:
        """Whether a cursor, given by its raw id, is recorded here."""
        return bool(self._namespaces) and int.from_bytes(cursor_id, "little", signed=True) in self._namespaces

    def observe_substitute(self, cursor_id: bytes, substitute: bytes) -> None:
        """Record the substitute of a recorded cursor; both are raw ids."""
        known = self._namespaces.get(int.from_bytes(cursor_id, "little", signed=True))
        if known is not None:
            self._namespaces[int.from_bytes(substitute, "little", signed=True)] = known

    @may_run_in_reactor
    async def admit(self, upstream: Upstream, request: Request) -> Sequence[Entry] | None:
        """Admit a ``getMore`` to the further namespaces of its cursor, if any.

        Returns:
            The entries, without having waited; the caller leaves them. None after a wait.

        Raises:
            CommandError: QueryPlanKilled, a namespace has been sharded or has moved to another shard. The cursor is
                closed. MaxTimeMSExpired or Interrupted: the wait ended early.
            BackendError: mongod does not answer.
        """
        cursor_id = self.find(request)
        if not cursor_id:
            return ()
        namespaces = self._namespaces[cursor_id]
        try:
            entries = self._admission.try_admit_to(request, namespaces)
            if entries is None:
                await in_own_task()
                await self._admission.wait_admissible_to(request, namespaces)
        except CommandError as error:
            if error.code != ErrorCode.CommandNotSupported:
                raise
            await in_own_task()
            await self._close(upstream, request, cursor_id)
            raise CommandError(ErrorCode.QueryPlanKilled, f"the cursor must end :: caused by :: {error}") from error
        return entries

    def observe_batch(self, request: Request, reply: bytes | None) -> None:
        """Remove a recorded cursor if this reply to its ``getMore`` ends it; after an error it may still be open."""
        if _cursor_id(reply) == 0:
            self._namespaces.pop(self.find(request), None)

    async def _forget_ended(self) -> None:
        known = {each.to_bytes(8, "little", signed=True): each for each in self._namespaces}
        self._forget_at = 2 * len(known)  # if the number that remains cannot be determined
        try:
            still_open = await self._still_open(known)
        except (BackendError, CommandError) as error:
            logger.debug("Could not look for cursors that have ended", error=str(error))
            return
        for ended in known.keys() - still_open:
            self._namespaces.pop(known[ended], None)
        self._forget_at = max(_FORGOTTEN_AT_FIRST, 2 * len(self._namespaces))

    async def _close(self, upstream: Upstream, request: Request, cursor_id: int) -> None:
        self._namespaces.pop(cursor_id, None)
        collection = request.get(b"collection")
        await upstream.command(request.db, {"killCursors": collection, "cursors": [Int64(cursor_id)]})


def _cursor_id(reply: bytes | None) -> int | None:
    """Return the id of the cursor in a reply, 0 if it is not open (any more); None for a reply without a cursor."""
    if reply is None:
        return None
    body = OpMsg(reply).body
    cursor = index(body).get(b"cursor")
    cursor_id = index(body, cursor[2]).get(b"id") if cursor is not None and cursor[0] == OBJECT else None
    return None if cursor_id is None or cursor_id[0] != INT64 else int(decode_value(body, cursor_id))


class CursorBatches:
    """Runner of ``getMore`` on the local mongod."""

    def __init__(self, shard: ShardServer, involved_cursors: InvolvedCursors) -> None:
        self._shard = shard
        self._context = shard.context
        self._involved_cursors = involved_cursors

    @may_run_in_reactor
    async def get_more(self, upstream: Upstream, request: Request, *, is_whole: bool = False) -> bytes | None:
        """Return the next batch of a cursor, without documents of ranges received after it was opened.

        Args:
            is_whole: whether to return the reply instead of passing it to the client as it arrives.

        Raises:
            CommandError: mongod refuses; QueryPlanKilled, such a range ended the cursor.
            BackendError: mongod does not answer.
        """
        if request.message.is_exhaust_allowed:
            # Each batch is read by itself: during a stream of mongod's own, no range could be hidden from the cursor.
            await in_own_task()
            return await upstream.answer_stream(request, partial(self.get_more, upstream, is_whole=True))
        former, in_use = self._shard.inherited_cursors, self._context.open_cursors.in_use
        if not former.are_gone:
            await in_own_task()
            await former.wait_gone(request)
        span = request.fields[b"getMore"]
        cursor_id = request.body[span[2] : span[3]]
        fenced = self._shard.fenced_cursors
        entries: Sequence[Entry] | None = None
        while entries is None:  # after a wait for further namespaces, everything else is checked again
            if in_use.is_held or cursor_id in fenced:
                await in_own_task()
                # Waiting for one may allow the other to begin, so both are checked again.
                while in_use.is_held or fenced.is_being_read(cursor_id):
                    await in_use.wait_released()
                    await fenced.wait_read(cursor_id)
                fenced.check_reader(cursor_id, request, upstream.user)
                if fenced.is_substituted(cursor_id):
                    return await self._next_of_substitute(upstream, request, cursor_id)
                reply = await fenced.answer(cursor_id, request)
                if reply is not None:
                    return reply
            entries = await self._involved_cursors.admit(upstream, request)
        reading = _Reading(in_use, cursor_id, entries)
        return await self._read(upstream, request, cursor_id, reading, is_whole=is_whole)

    @may_run_in_reactor
    async def take_over(self, upstream: Upstream, request: Request, begun: "BegunBatch") -> bytes | None:
        """Return the batch of a ``getMore`` that a passage has begun; errors as `get_more`."""
        return await self._read(upstream, request, begun.cursor_id, begun.reading, begun=begun)

    @may_run_in_reactor
    async def _read(
        self,
        upstream: Upstream,
        request: Request,
        cursor_id: bytes,
        reading: "_Reading",
        *,
        is_whole: bool = False,
        begun: "BegunBatch | None" = None,
    ) -> bytes | None:
        try:
            reply = await self._next_batch(upstream, request, cursor_id, reading, begun, is_whole=is_whole)
        finally:
            reading.end()
        if self._shard.fenced_cursors.is_substituted(cursor_id):
            # It was substituted during the read, so the reply may contain hidden documents.
            await in_own_task()
            return await self._next_of_substitute(upstream, request, cursor_id)
        return reply

    async def _next_of_substitute(self, upstream: Upstream, request: Request, cursor_id: bytes) -> bytes:
        """Return the next batch of the cursor opened as a substitute."""
        fenced = self._shard.fenced_cursors
        substitute = await fenced.substitute(upstream, cursor_id)
        self._involved_cursors.observe_substitute(cursor_id, substitute)
        at = request.fields[b"getMore"][2]
        body = b"".join((request.body[:at], substitute, request.body[at + len(substitute) :]))
        reply = await self.get_more(upstream, request.with_body(body), is_whole=True)
        assert reply is not None
        return await fenced.with_own_id(cursor_id, substitute, reply)

    @may_run_in_reactor
    async def _next_batch(
        self,
        upstream: Upstream,
        request: Request,
        cursor_id: bytes,
        reading: "_Reading",
        begun: "BegunBatch | None",
        *,
        is_whole: bool,
    ) -> bytes | None:
        fenced = self._shard.fenced_cursors
        frame, flags = request.message.frame, request.message.flags

        def may_begin() -> bool:
            if cursor_id in fenced:
                return False
            reading.end()
            return True

        if is_whole or reading.entries:
            attempt = partial(upstream.forward, frame, flags)
        else:
            attempt = partial(upstream.pass_on, frame, flags, may_begin)
        following = attempt
        if begun is not None:
            attempt = partial(upstream.receive, begun, may_begin)
        while True:
            reply = await attempt()
            attempt = following
            if reading.entries:
                self._involved_cursors.observe_batch(request, reply)
            if reply is None or cursor_id not in fenced or fenced.is_substituted(cursor_id):
                return reply
            await in_own_task()
            reply, is_wanting = await fenced.without_hidden(cursor_id, reply)
            if not is_wanting:
                return reply


class _Reading:
    """The use of a cursor and its further namespaces until mongod starts to reply; the batch is then complete.

    A client may take long to receive the reply, and nothing may wait for that.

    It must not wait for a critical section. The section's owner may be waiting for a listing of cursors, which is
    repeated until it shows all cursors in use, and never shows one that mongod has ended. So the use begins after such
    waits, just before the command is sent. From the last check that no listing holds readers back until then, there is
    no checkpoint.

    Attributes:
        entries: the admissions to further namespaces.
    """

    __slots__ = ("_cursor_id", "_in_use", "_is_over", "entries")

    def __init__(self, in_use: CursorsInUse, cursor_id: bytes, entries: Sequence[Entry] = ()) -> None:
        self.entries = entries
        self._in_use = in_use
        self._cursor_id = cursor_id
        self._is_over = False
        in_use.enter(cursor_id)

    def end(self) -> None:
        """Mark the batch as complete or the command as failed."""
        if not self._is_over:
            self._is_over = True
            self._in_use.exit(self._cursor_id)
            for entry in self.entries:
                entry.leave()


class BegunBatch(Begun):
    """A ``getMore`` that a passage has sent to mongod.

    Attributes:
        reading: the use of the cursor.
    """

    __slots__ = ("cursor_id", "reading")

    def __init__(
        self, connection: Connection, frame: bytes, started: float, in_use: CursorsInUse, cursor_id: bytes
    ) -> None:
        super().__init__(connection, frame, started)
        self.cursor_id = cursor_id
        self.reading = _Reading(in_use, cursor_id)

    def give_up(self) -> None:
        """Count the batch as read; see `Begun`."""
        super().give_up()
        self.reading.end()
