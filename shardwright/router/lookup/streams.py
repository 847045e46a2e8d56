"""Streams of raw documents, which one part of a pipeline returns to the next.

The source of a stream is a cursor on one shard, an aggregation by the router itself, or another stream whose documents
are wrapped. Each reader of a `Tee` receives all documents. The tee reads the next batch when all remaining readers want
it, so that it holds only one batch.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final, Protocol

import trio

from shardwright.router.cursors.cursor import GetMore
from shardwright.router.cursors.manager import CursorManager
from shardwright.router.cursors.remote import RemoteCursor
from shardwright.router.replies.cursor_reply import FIRST_BATCH, NEXT_BATCH, CursorReply
from shardwright.router.replies.reply_builder import Reply
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.router.sending.shard_sender import ShardSender
from shardwright.wire.error_codes import ErrorCode
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


class DocumentStream(Protocol):
    """Documents that are fetched on demand."""

    @property
    def remotes(self) -> Sequence[RemoteCursor]:
        """The open cursors of the stream on shards, to be killed if it is not read to its end."""

    async def next_batch(self) -> list[bytes]:
        """Return the next documents; an empty list at the end.

        Raises:
            CommandError: they could not be read; the stream ends.
        """


class ListStream:
    """A stream of documents in memory."""

    remotes: Final = ()

    def __init__(self, documents: Iterable[bytes]) -> None:
        self._documents = list(documents)

    async def next_batch(self) -> list[bytes]:
        """See `DocumentStream`."""
        documents, self._documents = self._documents, []
        return documents


class ConcatenatedStream:
    """The documents of two streams; the second is opened when the first has ended."""

    def __init__(self, first: DocumentStream, open_second: Callable[[], Awaitable[DocumentStream]]) -> None:
        self._current = first
        self._open_second: Callable[[], Awaitable[DocumentStream]] | None = open_second

    @property
    def remotes(self) -> Sequence[RemoteCursor]:
        """See `DocumentStream`."""
        return self._current.remotes

    async def next_batch(self) -> list[bytes]:
        """See `DocumentStream`."""
        documents = await self._current.next_batch()
        if not documents and self._open_second is not None:
            open_second, self._open_second = self._open_second, None
            self._current = await open_second()
            documents = await self._current.next_batch()
        return documents


class PrefetchedStream:
    """A stream from which some documents were already read, including these."""

    def __init__(self, documents: list[bytes], rest: DocumentStream) -> None:
        self._documents = documents
        self._rest = rest

    @property
    def remotes(self) -> Sequence[RemoteCursor]:
        """See `DocumentStream`."""
        return self._rest.remotes

    async def next_batch(self) -> list[bytes]:
        """See `DocumentStream`."""
        documents, self._documents = self._documents, []
        return documents or await self._rest.next_batch()


def remotes_of(*streams: DocumentStream | None) -> tuple[RemoteCursor, ...]:
    """Return the cursors on shards of several streams."""
    return tuple(chain.from_iterable(stream.remotes for stream in streams if stream is not None))


class ShardStream:
    """A `DocumentStream` on one shard's cursor."""

    def __init__(self, sender: ShardSender, reply: ShardReply) -> None:
        """Adopt a cursor.

        Args:
            reply: the reply that opened the cursor.

        Raises:
            RemoteProtocolError: it has no cursor.
        """
        cursor = CursorReply.of(reply)
        self._documents = cursor.documents()
        self._remote = RemoteCursor.opened(sender, reply, cursor)

    @property
    def remotes(self) -> Sequence[RemoteCursor]:
        """See `DocumentStream`."""
        return (self._remote,)

    async def next_batch(self) -> list[bytes]:
        """See `DocumentStream`."""
        documents, self._documents = self._documents, []
        while not documents and not self._remote.is_exhausted:
            reply = await self._remote.exchange(self._remote.get_more_frame(None, b""))
            if reply.error is not None:
                raise reply.error
            cursor = CursorReply.of(reply)
            self._remote.id = cursor.cursor_id
            documents = cursor.documents()
        return documents


class RoutedStream:
    """A `DocumentStream` on an aggregation by the router, whose router cursor it adopts."""

    def __init__(self, cursors: CursorManager, reply: Reply, session: bytes) -> None:
        """Adopt the cursor of a reply.

        Args:
            session: the raw ``lsid`` element of the aggregation; empty outside a session.

        Raises:
            CommandError: the reply is an error of a shard.
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
        """See `DocumentStream`."""
        return () if self._cursor is None else self._cursor.remotes

    async def next_batch(self) -> list[bytes]:
        """See `DocumentStream`."""
        documents, self._documents = self._documents, []
        while not documents and self._cursor is not None and not self._cursor.is_exhausted:
            frame = await self._cursor.next_batch(_get_more(self._cursor_id, self._cursor.namespace, self._session))
            assert frame is not None  # without a client, nothing is relayed
            documents, _ = _batch(frame, NEXT_BATCH)
        if self._cursor is not None and self._cursor.is_exhausted:
            # The shards may have more documents than a limit allows.
            self._cursors.kill_remotes(self._cursor.remotes)
            self._cursor = None
        return documents


def _get_more(cursor_id: int, namespace: str, session: bytes) -> GetMore:
    db, _, collection = namespace.partition(".")
    elements = element(b"getMore", INT64, cursor_id.to_bytes(8, "little"))
    body = from_elements(elements + session + encode_elements({"collection": collection, "$db": db}))
    return GetMore(Request(OpMsg(op_msg(body, request_id=next_request_id()))), None, cursor_id)


def _batch(frame: bytes, name: bytes) -> tuple[list[bytes], int]:
    """Return the documents and the cursor id of a reply."""
    body = OpMsg(frame).body
    cursor = index(body).get(b"cursor")
    if cursor is None:
        raise CommandError.from_reply(decode_document(body))
    fields = index(body, cursor[2])
    return array_documents(body, fields[name]), int(decode_value(body, fields[b"id"]))


class RowStream:
    """A `DocumentStream` whose documents are wrapped in rows."""

    def __init__(
        self,
        documents: DocumentStream,
        row: Callable[[bytes, int], bytes],
        *,
        if_none: bytes | None = None,
        bytes_max: int | None = None,
        excess: CommandError | None = None,
    ) -> None:
        """Prepare the stream.

        Args:
            if_none: the only row if there are no documents; None for no row.
            bytes_max: the maximum total size of the documents, None for no limit.
            excess: the error if they are larger.
        """
        self._documents = documents
        self._row = row
        self._if_none = if_none
        self._bytes_left = bytes_max
        self._excess = excess
        self._count = 0

    @property
    def remotes(self) -> Sequence[RemoteCursor]:
        """See `DocumentStream`."""
        return self._documents.remotes

    async def next_batch(self) -> list[bytes]:
        """See `DocumentStream`."""
        batch = await self._documents.next_batch()
        if not batch and not self._count and self._if_none is not None:
            self._count = 1
            return [self._if_none]
        rows = [self._row(document, number) for number, document in enumerate(batch, self._count)]
        self._count += len(rows)
        if self._bytes_left is not None:
            self._bytes_left -= sum(map(len, batch))
            if self._bytes_left < 0:
                assert self._excess is not None
                raise self._excess
        return rows


class Tee:
    """A stream for several readers. `pump` must run while there are readers."""

    def __init__(self, source: DocumentStream, count: int) -> None:
        self._source = source
        self._batch: list[bytes] = []
        self._number = 0
        self._is_ended = False
        self._changed = trio.Condition()
        self._left = {TeeReader(self) for _ in range(count)}
        self.readers: Final = tuple(self._left)

    async def pump(self) -> None:
        """Read the source for the readers until none is left.

        Raises:
            CommandError: it could not be read; the readers fail.
        """
        try:
            while await self._is_wanted():
                batch = await self._source.next_batch()
                async with self._changed:
                    self._batch = batch
                    self._number += 1
                    self._changed.notify_all()
        finally:
            self._is_ended = True
            with trio.CancelScope(shield=True):
                async with self._changed:
                    self._changed.notify_all()

    async def leave(self, reader: "TeeReader") -> None:
        """Remove a reader."""
        async with self._changed:
            self._left.discard(reader)
            self._changed.notify_all()

    async def batch_after(self, reader: "TeeReader") -> list[bytes]:
        """Return the batch after a reader's last one.

        Raises:
            CommandError: QueryPlanKilled, the stream was ended.
        """
        async with self._changed:
            reader.is_waiting = True
            self._changed.notify_all()
            while reader.number == self._number and not self._is_ended:
                await self._changed.wait()
            reader.is_waiting = False
            if reader.number == self._number:
                raise CommandError(ErrorCode.QueryPlanKilled, "The pipeline of a $facet has ended")
            reader.number = self._number
            return self._batch

    async def _is_wanted(self) -> bool:
        """Wait until all readers want the next batch; return whether any reader is left."""
        async with self._changed:
            while not all(reader.is_waiting and reader.number == self._number for reader in self._left):
                await self._changed.wait()
            return bool(self._left)


class TeeReader:
    """A `DocumentStream` of one reader of a tee.

    Attributes:
        number: the number of its last batch.
        is_waiting: whether it waits for the next one.
    """

    remotes: Sequence[RemoteCursor] = ()

    def __init__(self, tee: Tee) -> None:
        self._tee = tee
        self.number = 0
        self.is_waiting = False

    async def next_batch(self) -> list[bytes]:
        """See `DocumentStream`."""
        return await self._tee.batch_after(self)
