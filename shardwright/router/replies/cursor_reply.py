"""Cursor replies: locating batch, id and namespace in a received reply, and building the router's own.

Positions are offsets into the frame, so that a single shard's reply is forwarded with only eight bytes changed.
"""

from struct import Struct
from typing import Any, Final

import bson

from shardwright.router.replies.shard_reply import ShardReply
from shardwright.wire.cursor_batch import CURSOR, CURSOR_AT, FIRST_ELEMENT_AT, is_whole_result_frame
from shardwright.wire.errors import CommandError, RemoteProtocolError
from shardwright.wire.message import OpMsg
from shardwright.wire.rawbson import (
    ARRAY,
    INT64,
    OBJECT,
    STRING,
    DocumentArray,
    InvalidBSONError,
    array_documents,
    array_elements,
    decode_document,
    decode_value,
    element,
    encode_elements,
    index,
    raw_document,
)

FIRST_BATCH: Final = b"firstBatch"
NEXT_BATCH: Final = b"nextBatch"

_BODY_START: Final = 21
"""Offset of the body in an OP_MSG whose first section it is."""

_INT64: Final = Struct("<q")
_INT32: Final = Struct("<i")


class CursorReply:
    """The cursor in a reply frame.

    Attributes:
        cursor_id: 0 when the cursor is exhausted.
    """

    __slots__ = ("_batch", "_fields", "_id_start", "cursor_id", "frame")

    def __init__(self, frame: bytes, cursor_start: int) -> None:
        """Locate the parts of the cursor.

        Args:
            cursor_start: the offset of the document ``cursor``.

        Raises:
            RemoteProtocolError: it is not a cursor.
        """
        self.frame = frame
        try:
            fields = index(frame, cursor_start)
            batch = fields[FIRST_BATCH] if FIRST_BATCH in fields else fields[NEXT_BATCH]
            id_span, namespace = fields[b"id"], fields[b"ns"]
        except (InvalidBSONError, KeyError) as error:
            raise RemoteProtocolError(f"a reply without a cursor: {error}") from error
        if batch[0] != ARRAY or id_span[0] != INT64 or namespace[0] != STRING:
            raise RemoteProtocolError("a cursor reply with fields of other types")
        self._batch = batch
        self._id_start = id_span[2]
        self._fields = fields
        self.cursor_id: int = _INT64.unpack_from(frame, id_span[2])[0]

    @classmethod
    def of(cls, reply: ShardReply) -> "CursorReply":
        """Return the cursor in a successful reply of a shard, without fields hidden from clients.

        Raises:
            RemoteProtocolError: there is none.
        """
        frame = reply.for_client()
        if frame.startswith(CURSOR, FIRST_ELEMENT_AT):
            return cls(frame, CURSOR_AT)
        cursor = reply.fields.get(b"cursor")
        if cursor is None or cursor[0] != OBJECT:
            raise RemoteProtocolError(f"{reply.shard_id} answered without a cursor")
        return cls(frame, index(frame, _BODY_START)[b"cursor"][2])

    @property
    def namespace(self) -> str:
        """The ``db.collection`` of the cursor, which ``getMore`` must name."""
        return str(decode_value(self.frame, self._fields[b"ns"]))

    @property
    def is_partial(self) -> bool:
        """Whether the reply states that some shard did not contribute."""
        return b"partialResultsReturned" in self._fields

    @property
    def post_batch_resume_token(self) -> bytes:
        """The raw token from which a change stream continues after this batch.

        Raises:
            RemoteProtocolError: there is none.
        """
        span = self._fields.get(b"postBatchResumeToken")
        if span is None or span[0] != OBJECT:
            raise RemoteProtocolError("a change stream without postBatchResumeToken")
        return self.frame[span[2] : span[3]]

    @property
    def is_empty(self) -> bool:
        """Whether the batch holds no document."""
        return self._batch[3] - self._batch[2] <= 5

    def array(self) -> DocumentArray:
        """Return the documents of the batch, to be split on demand.

        Raises:
            RemoteProtocolError: the batch is not an array.
        """
        try:
            return DocumentArray(self.frame, self._batch)
        except InvalidBSONError as error:
            raise RemoteProtocolError(f"a cursor reply: {error}") from error

    def documents(self) -> list[bytes]:
        """Return the documents of the batch, each as its own bytes.

        Raises:
            RemoteProtocolError: the batch is not an array of documents.
        """
        try:
            return array_documents(self.frame, self._batch)
        except InvalidBSONError as error:
            raise RemoteProtocolError(f"a cursor reply: {error}") from error

    def with_cursor_id(self, cursor_id: int, response_to: int | None = None) -> bytes:
        """Replace the cursor id in the frame and, if given, the id of the request that it answers."""
        at = self._id_start
        frame = memoryview(self.frame)  # copies the parts of a long reply only once
        parts: list[bytes | memoryview] = [frame[:at], _INT64.pack(cursor_id), frame[at + 8 :]]
        if response_to is not None:
            parts[:1] = frame[:8], _INT32.pack(response_to), frame[12:at]
        return b"".join(parts)


def is_whole_result(reply: ShardReply) -> bool:
    """Whether a successful reply clearly contains the whole result: a first batch, followed by cursor id 0.

    This is how mongod writes it. It is checked first, because most replies are of this kind.
    """
    return is_whole_result_frame(reply.frame)


def cursor_element(
    batch_name: bytes,
    documents: list[bytes],
    cursor_id: int,
    namespace: str,
    *,
    is_partial: bool = False,
    at_cluster_time: Any = None,  # noqa: ANN401 - a BSON timestamp or nothing
    post_batch_resume_token: bytes | None = None,
) -> list[bytes]:
    """Encode the element ``cursor`` of a reply with the given raw documents, in mongos's order of fields, in pieces.

    A batch can have 16 MiB, and is copied only once, when all pieces of the reply are joined.
    """
    trailer: dict[str, Any] = {"partialResultsReturned": True} if is_partial else {}
    if post_batch_resume_token is not None:
        trailer["postBatchResumeToken"] = raw_document(post_batch_resume_token)
    trailer |= {"id": bson.Int64(cursor_id), "ns": namespace}
    if at_cluster_time is not None:
        trailer["atClusterTime"] = at_cluster_time
    return cursor_pieces(batch_name, documents, encode_elements(trailer) + b"\0")


def cursor_pieces(batch_name: bytes, documents: list[bytes], end: bytes) -> list[bytes]:
    """Encode the element ``cursor`` of a reply, see `cursor_element`; ``end`` has its bytes after the batch."""
    elements = array_elements(documents)
    array_bytes = 5 + sum(map(len, elements))
    batch = element(batch_name, ARRAY, b"")
    sizes = _INT32.pack(4 + len(batch) + array_bytes + len(end)), _INT32.pack(array_bytes)
    return [CURSOR, sizes[0], batch, sizes[1], *elements, b"\0", end]


def first_batch(reply: bytes | dict[str, Any] | None) -> list[bytes]:
    """Return the documents of the first batch in a reply of the router.

    Args:
        reply: its frame, or a dict for a reply without documents.

    Raises:
        CommandError: the reply is a shard's error, in the form for the client.
    """
    if not isinstance(reply, bytes):
        return []
    body = OpMsg(reply).body
    cursor = index(body).get(b"cursor")
    if cursor is None:
        raise CommandError.from_reply(decode_document(body))
    return array_documents(body, index(body, cursor[2])[FIRST_BATCH])


def empty_cursor(namespace: str) -> dict[str, Any]:
    """Return the reply to a read of a missing collection, with MongoDB's order of fields."""
    return {"cursor": {"id": bson.Int64(0), "ns": namespace, "firstBatch": []}}
