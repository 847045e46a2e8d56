"""The documents of an aggregation that the router runs for itself."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shardwright.router.cursors.get_more import GetMore
from shardwright.router.cursors.manager import CursorManager
from shardwright.router.cursors.remote import RemoteCursor
from shardwright.router.replies.cursor_reply import FIRST_BATCH, NEXT_BATCH
from shardwright.router.replies.own_reply import Reply
from shardwright.wire.errors import CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.rawbson import (
    INT64,
    array_documents,
    decode_document,
    decode_value,
    element,
    encode_elements,
    from_elements,
    index,
)
from shardwright.wire.request import Request

if TYPE_CHECKING:
    from shardwright.router.cursors.cursor import Cursor


class RoutedStream:
    """See `streams.DocumentStream`. It takes over the cursor that the aggregation has opened in the router."""

    def __init__(self, cursors: CursorManager, reply: Reply, session: bytes) -> None:
        """Take over the cursor of a reply.

        Args:
            cursors: the cursors of the router.
            reply: of the aggregation.
            session: the raw ``lsid`` element of the aggregation; empty if it is in no session.

        Raises:
            CommandError: the reply of a shard says that it failed.
        """
        self._cursors = cursors
        self._documents: list[bytes] = []
        self._cursor: Cursor | None = None
        self._cursor_id = 0
        self._session = session
        if isinstance(reply, bytes):
            self._documents, self._cursor_id = _batch(reply, FIRST_BATCH)
            if self._cursor_id:
                self._cursor = cursors.take(self._cursor_id)

    @property
    def remotes(self) -> Sequence[RemoteCursor]:
        """See `streams.DocumentStream`."""
        return () if self._cursor is None else self._cursor.remotes

    async def next_batch(self) -> list[bytes]:
        """See `streams.DocumentStream`."""
        documents, self._documents = self._documents, []
        while not documents and self._cursor is not None and not self._cursor.is_exhausted:
            frame = await self._cursor.next_batch(_get_more(self._cursor_id, self._cursor.namespace, self._session))
            assert frame is not None  # without a client, nothing is relayed
            documents, _ = _batch(frame, NEXT_BATCH)
        if self._cursor is not None and self._cursor.is_exhausted:
            # With a limit the shards may have more.
            self._cursors.kill_remotes(self._cursor.remotes)
            self._cursor = None
        return documents


def _get_more(cursor_id: int, namespace: str, session: bytes) -> GetMore:
    db, _, collection = namespace.partition(".")
    elements = element(b"getMore", INT64, cursor_id.to_bytes(8, "little"))
    body = from_elements(elements + session + encode_elements({"collection": collection, "$db": db}))
    return GetMore(Request(OpMsg(op_msg(body, request_id=next_request_id()))), None, cursor_id)


def _batch(frame: bytes, name: bytes) -> tuple[list[bytes], int]:
    """The documents and the cursor id of a reply.

    Raises:
        CommandError: it is that of a failed command.
    """
    body = OpMsg(frame).body
    cursor = index(body).get(b"cursor")
    if cursor is None:
        raise CommandError.from_reply(decode_document(body))
    fields = index(body, cursor[2])
    return array_documents(body, fields[name]), int(decode_value(body, fields[b"id"]))
