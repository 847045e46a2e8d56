"""Cursors that are older than an incoming range: they must not return documents that are written to it.

They were opened without a filter for the range. So their batches are filtered on the way, by each document's shard key
in the raw bytes. This costs nothing if no range has been received since a cursor was opened. A cursor whose documents
do not show their shard keys, or that counts them (``limit``), is given some time and then ended.
"""

from collections.abc import Collection, Sequence
from struct import Struct
from typing import Final

import trio
from bson.int64 import Int64

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.orphans.cursor_kinds import may_return, shows_shard_key
from shardwright.shardd.orphans.open_cursors import OpenCursor, OpenCursors, now
from shardwright.shardd.orphans.ownership_filter import OwnershipFilter
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.message import with_body
from shardwright.wire.transport.client import response_body

logger = get_logger("shardd.orphans")

END_AFTER_SECONDS: Final = 5.0
"""How long a migration waits for cursors that cannot be filtered."""

_POLL_SECONDS: Final = 0.1
_pack_id: Final = Struct("<q").pack


class OlderCursors:
    """The older cursors of one mongod, by the raw bytes of their ids.

    Args:
        mongod: the mongod.
        open_cursors: finds them.
    """

    def __init__(self, mongod: LocalMongod, open_cursors: OpenCursors) -> None:
        self._mongod = mongod
        self._open_cursors = open_cursors
        self._hidden: dict[bytes, tuple[str, tuple[OwnershipFilter, ...]]] = {}
        self._ended: dict[bytes, str] = {}

    def __contains__(self, cursor_id: bytes) -> bool:
        return cursor_id in self._hidden or cursor_id in self._ended

    async def hide(
        self, namespace: str, hidden: OwnershipFilter, *, end_after_seconds: float = END_AFTER_SECONDS
    ) -> None:
        """Hide documents that will be written to some ranges from all cursors that are open now.

        Args:
            namespace: the collection.
            hidden: the ranges.
            end_after_seconds: how long to wait for cursors that cannot be filtered.

        Raises:
            CommandError: mongod refuses.
            BackendError: mongod does not answer.
        """
        opened_until = now()
        deadline = trio.current_time() + end_after_seconds
        while True:
            cursors = await self._open_cursors.older(namespace, opened_until=opened_until)
            self._forget_closed(namespace, {_pack_id(each.id) for each in cursors})
            concerned = [each for each in cursors if may_return(each.command, hidden, is_begun=each.is_begun)]
            others = [each for each in concerned if not self._try_hide(namespace, each, hidden)]
            if not others:
                return
            if trio.current_time() >= deadline:
                logger.warning(
                    "Killed cursors opened before a range was received", namespace=namespace, count=len(others)
                )
                await self._end(namespace, others)
                return
            await trio.sleep(_POLL_SECONDS)

    def without_hidden(self, cursor_id: bytes, frame: bytes) -> tuple[bytes, bool]:
        """The reply to a ``getMore`` of such a cursor, without hidden documents.

        Returns:
            The frame of the reply, and whether it is empty so that another batch has to be fetched.

        Raises:
            CommandError: QueryPlanKilled, the cursor was ended.
        """
        if self._ended.pop(cursor_id, None) is not None:
            raise CommandError(
                ErrorCode.QueryPlanKilled, "a range of the collection was received after the cursor was opened"
            )
        body = response_body(frame)
        cursor = rawbson.find(body, b"cursor")
        if cursor is None:  # an error: mongod has closed the cursor, or the client tries again
            return frame, False
        value = body[cursor[2] : cursor[3]]
        fields = rawbson.index(value)
        batch = fields[b"nextBatch"]
        documents = rawbson.array_documents(value, batch)
        ranges = self._hidden[cursor_id][1]
        kept = [document for document in documents if not any(each.covers(document) for each in ranges)]
        is_over = not any(value[fields[b"id"][2] : fields[b"id"][3]])
        if is_over:
            del self._hidden[cursor_id]
        if len(kept) == len(documents):
            return frame, False
        value = rawbson.with_value(value, batch, rawbson.array_of_documents(kept))
        return with_body(frame, rawbson.with_value(body, cursor, value)), not kept and not is_over

    async def _end(self, namespace: str, cursors: Sequence[OpenCursor]) -> None:
        self._ended.update((_pack_id(each.id), namespace) for each in cursors)
        db, _, collection = namespace.partition(".")
        await self._mongod.command(db, {"killCursors": collection, "cursors": [Int64(each.id) for each in cursors]})

    def _try_hide(self, namespace: str, cursor: OpenCursor, hidden: OwnershipFilter) -> bool:
        if not shows_shard_key(cursor.command, hidden.pattern):
            return False
        cursor_id = _pack_id(cursor.id)
        known = self._hidden.get(cursor_id, (namespace, ()))[1]
        if hidden not in known:
            self._hidden[cursor_id] = namespace, (*known, hidden)
        return True

    def _forget_closed(self, namespace: str, still_open: Collection[bytes]) -> None:
        for cursor_id in [each for each, (ns, _) in self._hidden.items() if ns == namespace and each not in still_open]:
            del self._hidden[cursor_id]
        for cursor_id in [each for each, ns in self._ended.items() if ns == namespace and each not in still_open]:
            del self._ended[cursor_id]
