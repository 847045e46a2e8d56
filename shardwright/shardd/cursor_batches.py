"""`getMore` on the local mongod, without the ranges that arrived after a cursor was opened."""

from functools import partial

from shardwright.daemon.sidecar.upstream import Upstream
from shardwright.shardd.operations.involved_cursors import InvolvedCursors
from shardwright.shardd.orphans.open_cursors import CursorsInUse
from shardwright.shardd.shard_server import ShardServer
from shardwright.wire.request import Request
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor


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
        reading = _Reading(in_use, cursor_id)
        try:
            reply = await self._next_batch(upstream, request, cursor_id, reading, is_whole=is_whole)
        finally:
            reading.end()
        if fenced.is_substituted(cursor_id):  # substituted during the read: the reply may contain hidden documents
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
        self, upstream: Upstream, request: Request, cursor_id: bytes, reading: "_Reading", *, is_whole: bool
    ) -> bytes | None:
        fenced, involved = self._shard.fenced_cursors, self._involved_cursors.find(request)
        frame, flags = request.message.frame, request.message.flags
        if involved:
            attempt = partial(self._involved_cursors.get_more, upstream, request, involved)
        elif is_whole:
            attempt = partial(upstream.forward, frame, flags)
        else:

            def may_begin() -> bool:
                if cursor_id in fenced:
                    return False
                reading.end()
                return True

            attempt = partial(upstream.pass_on, frame, flags, may_begin)
        while True:
            reply = await attempt()
            if reply is None or cursor_id not in fenced or fenced.is_substituted(cursor_id):
                return reply
            await in_own_task()
            reply, is_wanting = await fenced.without_hidden(cursor_id, reply)
            if not is_wanting:
                return reply


class _Reading:
    """The use of a cursor from the request until mongod starts to reply; the batch is then complete.

    A client may take long to receive the reply, and nothing may wait for that.
    """

    __slots__ = ("_cursor_id", "_in_use", "_is_over")

    def __init__(self, in_use: CursorsInUse, cursor_id: bytes) -> None:
        self._in_use = in_use
        self._cursor_id = cursor_id
        self._is_over = False
        in_use.enter(cursor_id)

    def end(self) -> None:
        """Mark the batch as complete or the command as failed."""
        if not self._is_over:
            self._is_over = True
            self._in_use.exit(self._cursor_id)
