"""The next batches of cursors, without what their collections received since the cursors were opened."""

from functools import partial

from shardwright.daemon.sidecar.upstream import Upstream
from shardwright.shardd.operations.involved_cursors import InvolvedCursors
from shardwright.shardd.orphans.cursors_in_use import CursorsInUse
from shardwright.shardd.shard_server import ShardServer
from shardwright.wire.request import Request
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor


class CursorBatches:
    """Runs ``getMore`` on the local mongod.

    Args:
        shard: the shard daemon.
        involved_cursors: the cursors that use several collections.
    """

    def __init__(self, shard: ShardServer, involved_cursors: InvolvedCursors) -> None:
        self._shard = shard
        self._context = shard.context
        self._involved_cursors = involved_cursors

    @may_run_in_reactor
    async def get_more(self, upstream: Upstream, request: Request) -> bytes | None:
        """The next batch of a cursor, without documents of ranges that were received after it was opened.

        Raises:
            CommandError: mongod refuses.
            BackendError: mongod does not answer.
        """
        former, in_use = self._shard.former_cursors, self._context.open_cursors.in_use
        if not former.are_gone:
            await in_own_task()
            await former.wait_gone(request)
        if in_use.is_held:
            await in_own_task()
            await in_use.wait_released()
        span = request.fields[b"getMore"]
        cursor_id = request.body[span[2] : span[3]]
        reading = _Reading(in_use, cursor_id)
        try:
            return await self._next_batch(upstream, request, cursor_id, reading)
        finally:
            reading.end()

    @may_run_in_reactor
    async def _next_batch(
        self, upstream: Upstream, request: Request, cursor_id: bytes, reading: "_Reading"
    ) -> bytes | None:
        older, involved = self._shard.older_cursors, self._involved_cursors.find(request)
        frame, flags = request.message.frame, request.message.flags
        if involved:
            attempt = partial(self._involved_cursors.get_more, upstream, request, involved)
        else:

            def may_begin() -> bool:
                if cursor_id in older:
                    return False
                reading.end()
                return True

            attempt = partial(upstream.pass_on, frame, flags, may_begin)
        while True:
            reply = await attempt()
            if reply is None or cursor_id not in older:
                return reply
            await in_own_task()
            reply, is_wanting = older.without_hidden(cursor_id, reply)
            if not is_wanting:
                return reply


class _Reading:
    """The reading of one batch, from the request until mongod begins to answer: then the batch is complete.

    How long a client takes for a long answer is its own affair; nothing may wait for it.
    """

    __slots__ = ("_cursor_id", "_in_use", "_is_over")

    def __init__(self, in_use: CursorsInUse, cursor_id: bytes) -> None:
        self._in_use = in_use
        self._cursor_id = cursor_id
        self._is_over = False
        in_use.enter(cursor_id)

    def end(self) -> None:
        """The batch is complete, or the command has failed."""
        if not self._is_over:
            self._is_over = True
            self._in_use.exit(self._cursor_id)
