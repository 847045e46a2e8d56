"""The rest of a cursor's documents, kept by this daemon for its client."""

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import trio

from shardwright.wire import rawbson
from shardwright.wire.cursor_batch import RawBatch
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.limits import BSON_OBJECT_BYTES_MAX
from shardwright.wire.message import op_msg
from shardwright.wire.request import Request
from shardwright.wire.transport.client import response_body
from shardwright.wire.transport.cursor import RawCursor

POLL_SECONDS: Final = 0.05

VisibleOf = Callable[[list[bytes]], Awaitable[list[bytes]]]
"""Leaves out the documents of a batch that are hidden."""


@dataclass(slots=True)
class Kept:
    """The rest of a cursor's documents.

    Attributes:
        reply: the body of a reply without documents, as a model for others.
        documents: the documents.
        size: their length in bytes.
    """

    reply: bytes = b""
    documents: deque[bytes] = field(default_factory=deque)
    size: int = 0

    async def read_all(self, cursor: RawCursor, visible_of: VisibleOf, bytes_max: int) -> bool:
        """Read a cursor to its end; False if it has more documents than may be kept, and is closed.

        mongod may say CursorInUse later as well. What has been read before cannot be given back, so this tries again.

        Args:
            cursor: the cursor.
            visible_of: leaves out hidden documents.
            bytes_max: how many bytes may be kept.

        Raises:
            CommandError: CursorInUse, CursorNotFound and others from mongod; the first two only as long as nothing has
                been read.
            BackendError: mongod does not answer.
        """
        try:
            batch = await cursor.next_batch()
        except CommandError as error:
            if error.code not in (ErrorCode.CursorInUse, ErrorCode.CursorNotFound):
                await cursor.close()
            raise
        try:
            while True:
                found = await visible_of(batch.documents())
                self.documents += found
                self.size += sum(map(len, found))
                if cursor.is_exhausted:
                    self.reply = _without_batch(response_body(batch.frame))
                    return True
                if self.size > bytes_max:
                    return False
                batch = await _next_when_unused(cursor)
        finally:
            await cursor.close()

    def answer(self, cursor_id: bytes, request: Request) -> bytes:
        """The reply to a ``getMore`` with the next batch; with the cursor's raw id unless it is the last one."""
        batch = self._take(request.get(b"batchSize") or 0)
        cursor = rawbson.find(self.reply, b"cursor")
        assert cursor is not None
        value = self.reply[cursor[2] : cursor[3]]
        fields = rawbson.index(value)
        if self.documents:
            at = fields[b"id"][2]
            value = b"".join((value[:at], cursor_id, value[at + len(cursor_id) :]))
        value = rawbson.with_value(value, fields[b"nextBatch"], rawbson.array_of_documents(batch))
        body = rawbson.with_value(self.reply, cursor, value)
        return op_msg(body, request_id=next_request_id(), response_to=request.message.request_id)

    def _take(self, batch_size: int) -> list[bytes]:
        taken: list[bytes] = []
        size = 0
        while self.documents and (not batch_size or len(taken) < batch_size):
            size += len(self.documents[0])
            if taken and size > BSON_OBJECT_BYTES_MAX:
                break
            taken.append(self.documents.popleft())
        self.size -= sum(map(len, taken))
        return taken


async def _next_when_unused(cursor: RawCursor) -> RawBatch:
    """The next batch, after any that another client reads past this daemon."""
    while True:
        try:
            return await cursor.next_batch()
        except CommandError as error:
            if error.code != ErrorCode.CursorInUse:
                raise
        await trio.sleep(POLL_SECONDS)


def _without_batch(body: bytes) -> bytes:
    """The body of a reply to ``getMore``, without its documents."""
    cursor = rawbson.find(body, b"cursor")
    assert cursor is not None
    value = body[cursor[2] : cursor[3]]
    batch = rawbson.index(value)[b"nextBatch"]
    return rawbson.with_value(body, cursor, rawbson.with_value(value, batch, rawbson.array_of_documents([])))
