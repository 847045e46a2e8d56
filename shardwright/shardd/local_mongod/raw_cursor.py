"""Cursors of the local mongod with raw batches, which can be passed on as they are in mongod's reply."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from struct import Struct
from typing import Any, Final

import bson
import trio
from bson.int64 import Int64
from bson.timestamp import Timestamp

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.range_scan import OWN_CURSOR_COMMENT
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.timestamps import pack_timestamp
from shardwright.wire import rawbson
from shardwright.wire.errors import BackendError, CommandError, RemoteProtocolError
from shardwright.wire.frames import OP_MSG, Header, next_request_id
from shardwright.wire.logger import get_logger
from shardwright.wire.message import op_msg
from shardwright.wire.transport.client import Connection, decode_reply

logger = get_logger("shardd.local_mongod")

_KILL_SECONDS_MAX: Final = 5.0

_BODY_AT: Final = 21
"""Offset of the body in an OP_MSG whose first section it is, as in replies."""

_unpack_int64 = Struct("<q").unpack_from
_unpack_int32 = Struct("<i").unpack_from


class RawBatch:
    """One batch, within the frame of the reply.

    Attributes:
        cursor_id: the cursor's id; 0 if this is its last batch.
    """

    __slots__ = ("_array", "_cursor", "_frame", "cursor_id")

    def __init__(self, frame: bytes) -> None:
        """Find the batch in a reply.

        Raises:
            CommandError: the reply says ``ok: 0``.
            RemoteProtocolError: it is not the reply of a cursor.
        """
        if Header(frame).opcode != OP_MSG or frame[_BODY_AT - 1]:
            raise RemoteProtocolError("a reply that is not a single document")
        span = rawbson.find(frame, b"cursor", _BODY_AT)
        if span is None:
            raise CommandError.from_reply(decode_reply(frame))
        self._frame = frame
        self._cursor = rawbson.index(frame, span[2])
        self._array: rawbson.Span = self._cursor.get(b"nextBatch") or self._cursor[b"firstBatch"]
        self.cursor_id = int(_unpack_int64(frame, self._cursor[b"id"][2])[0])

    @property
    def array(self) -> memoryview:
        """The documents as a raw BSON array, not copied."""
        return memoryview(self._frame)[self._array[2] : self._array[3]]

    @property
    def is_empty(self) -> bool:
        """Whether it has no documents."""
        return self._array[3] - self._array[2] == len(rawbson.EMPTY_DOCUMENT)

    def documents(self) -> list[bytes]:
        """The documents, each as bytes."""
        return rawbson.array_documents(self._frame, self._array)

    def count(self, expected: int) -> int:
        """The number of documents, found without visiting each if there are as many as expected."""
        frame, start, end = self._frame, self._array[2], self._array[3]
        if expected:
            key = b"\x03%d\0" % (expected - 1)
            position = frame.rfind(key, start, end)
            # A field of that name within a document would end before the end of the array.
            if position >= 0 and position + len(key) + _unpack_int32(frame, position + len(key))[0] == end - 1:
                return expected
        return sum(1 for _ in rawbson.spans(frame, start))

    @property
    def scanned(self) -> int:
        """The time, packed, up to which a cursor on the oplog has scanned; 0 if the reply does not say."""
        token = self._cursor.get(b"postBatchResumeToken")
        if token is None:
            return 0
        time = rawbson.decode_value(self._frame, token).get("ts", Timestamp(0, 0))
        return pack_timestamp(time)


class RawCursor:
    """A cursor, and the connection reserved for it.

    Args:
        mongod: the local mongod.
        connection: borrowed from its pool.
        namespace: the collection.
        options: fields for every command of the cursor, such as ``lsid``.

    Attributes:
        id: its id; 0 before it is opened and after it has ended.
    """

    def __init__(
        self,
        mongod: LocalMongod,
        connection: Connection,
        namespace: Namespace,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._mongod = mongod
        self._connection = connection
        self._namespace = namespace
        self._options = dict(options or {})
        self.id = 0

    @classmethod
    @asynccontextmanager
    async def open(
        cls, mongod: LocalMongod, namespace: Namespace, options: Mapping[str, Any] | None = None
    ) -> "AsyncIterator[RawCursor]":
        """A cursor that is closed after the block, with its connection if that may still be in use."""
        cursor = cls(mongod, await mongod.pool.borrow(), namespace, options)
        try:
            yield cursor
        finally:
            await cursor.close()

    async def find(self, arguments: Mapping[str, Any]) -> RawBatch:
        """Open the cursor.

        Raises:
            CommandError: mongod refuses.
            BackendError: mongod does not answer.
        """
        return await self._run({"find": self._namespace.collection, "comment": OWN_CURSOR_COMMENT, **arguments})

    async def more(self, **options: object) -> RawBatch:
        """The next batch of an open cursor.

        Raises:
            CommandError: the cursor is not open, or the operation was interrupted.
            BackendError: mongod does not answer.
        """
        return await self._run({"getMore": Int64(self.id), "collection": self._namespace.collection, **options})

    async def close(self) -> None:
        """End it, even when cancelled; mongod would keep it open for ten minutes, or as long as its session."""
        if self.id:
            self._connection.close()  # interrupts a command that may be under way
        self._mongod.pool.give_back(self._connection)
        if not self.id:
            return
        kill = {"killCursors": self._namespace.collection, "cursors": [Int64(self.id)]}
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _KILL_SECONDS_MAX):
            try:
                await self._mongod.command(self._namespace.db, kill)
            except (BackendError, CommandError) as error:
                # If mongod is gone, so are its cursors.
                logger.info("Could not kill a cursor", namespace=str(self._namespace), error=str(error))

    async def _run(self, command: Mapping[str, Any]) -> RawBatch:
        document = bson.encode({**command, **self._options, "$db": self._namespace.db})
        batch = RawBatch(await self._connection.exchange(op_msg(document, request_id=next_request_id())))
        self.id = batch.cursor_id
        return batch
