"""Cursors that read further namespaces besides their own: each batch counts as a read of all of them.

A ``getMore`` carries no version. A cursor on one collection does not need one, because it continues with the documents
that it began with. But a pipeline opens its other collections again for each document, and would miss documents that
have moved to other shards. So the versions of these collections are checked before each batch, and the batch is counted
as a read of them.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from bson import Int64

from shardwright.daemon.sidecar.upstream import Upstream
from shardwright.shardd.operations.admission import Admission, Entry
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.message import OpMsg
from shardwright.wire.rawbson import INT64, OBJECT, decode_value, index
from shardwright.wire.request import Request
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor

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

    def observe_substitute(self, cursor_id: bytes, substitute: bytes) -> None:
        """Record the substitute of a recorded cursor; both are raw ids."""
        known = self._namespaces.get(int.from_bytes(cursor_id, "little", signed=True))
        if known is not None:
            self._namespaces[int.from_bytes(substitute, "little", signed=True)] = known

    @may_run_in_reactor
    async def get_more(self, upstream: Upstream, request: Request, cursor_id: int) -> bytes | None:
        """Check the further namespaces and forward a ``getMore``.

        Raises:
            CommandError: QueryPlanKilled, a namespace has been sharded or has moved to another shard. The cursor is
                closed.
            BackendError: mongod does not answer.
        """
        await in_own_task()
        try:
            entries = await self._admission.admit_to(request, self._namespaces[cursor_id])
        except CommandError as error:
            if error.code != ErrorCode.CommandNotSupported:
                raise
            await self._close(upstream, request, cursor_id)
            raise CommandError(ErrorCode.QueryPlanKilled, f"the cursor must end :: caused by :: {error}") from error
        try:
            reply = await upstream.forward(request.message.frame, request.message.flags)
        finally:
            for entry in entries:
                entry.leave()
        if not _cursor_id(reply):
            self._namespaces.pop(cursor_id, None)
        return reply

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


def _cursor_id(reply: bytes | None) -> int:
    """Return the id of the open cursor in a reply, or 0."""
    if reply is None:
        return 0
    body = OpMsg(reply).body
    cursor = index(body).get(b"cursor")
    cursor_id = index(body, cursor[2]).get(b"id") if cursor is not None and cursor[0] == OBJECT else None
    return 0 if cursor_id is None or cursor_id[0] != INT64 else int(decode_value(body, cursor_id))
