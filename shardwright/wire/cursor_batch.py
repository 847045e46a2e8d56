"""One batch of a cursor, located within its reply."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from struct import Struct
from struct import error as struct_error
from typing import Any, Final, Protocol, TypeVar

from shardwright.wire import rawbson
from shardwright.wire.errors import CommandError, RemoteProtocolError
from shardwright.wire.frames import OP_MSG, Header

TIMES: Final = ("$clusterTime", "operationTime")
"""Fields with the newest cluster time of a server, and the time of the operation."""


Document = TypeVar("Document", covariant=True)

_BODY_AT: Final = 21
"""Offset of the body in an OP_MSG that begins with it, as replies do."""

# The first elements of mongod's cursor replies, and of the cursor in a first reply. A length stands in between.
FIRST_ELEMENT_AT: Final = _BODY_AT + 4
CURSOR: Final = rawbson.element(b"cursor", rawbson.OBJECT, b"")
CURSOR_AT: Final = FIRST_ELEMENT_AT + len(CURSOR)
_FIRST_BATCH_AT: Final = CURSOR_AT + 4
_FIRST_BATCH: Final = rawbson.element(b"firstBatch", rawbson.ARRAY, b"")
_NEXT_BATCH: Final = rawbson.element(b"nextBatch", rawbson.ARRAY, b"")
_ID: Final = rawbson.element(b"id", rawbson.INT64, b"")
_DOCUMENTS_AT: Final = _FIRST_BATCH_AT + len(_FIRST_BATCH)
_NEXT_DOCUMENTS_AT: Final = _FIRST_BATCH_AT + len(_NEXT_BATCH)
_NO_ID: Final = rawbson.element(b"id", rawbson.INT64, bytes(8))

_NAMESPACES_MAX: Final = 1_024
"""Number of cached ends of cursors."""

_DOCUMENT: Final = bytes([rawbson.OBJECT])
_INDEX: Final = re.compile(rb"(\d{1,7})\0")
_EMPTY_BYTES: Final = len(rawbson.EMPTY_DOCUMENT)
_FIRST_DOCUMENT_AT: Final = 4 + len(rawbson.element(b"0", rawbson.OBJECT, b""))
_TRIED_MAX: Final = 16
"""Number of positions tried as the start of an array's last element before all elements are visited."""

_unpack_int64 = Struct("<q").unpack_from
_unpack_int32 = Struct("<i").unpack_from


class CursorBatch(Protocol[Document]):
    """The parts of a batch that reading a cursor needs.

    Attributes:
        cursor_id: 0 in the last batch.
        namespace: the ``db.collection`` for ``getMore``.
    """

    cursor_id: int
    namespace: str

    def documents(self) -> Sequence[Document]:
        """Return the documents; a batch may be empty."""


class DocumentSink(Protocol):
    """Receiver of a cursor's raw documents as batches arrive, such as a list."""

    def extend(self, documents: Iterable[bytes], /) -> None:
        """Take the documents of the next batch."""


class DecodedBatch:
    """The batch of a decoded reply (see `CursorBatch`); ``cursor`` is the reply's field of that name."""

    __slots__ = ("cursor", "cursor_id", "namespace")

    def __init__(self, reply: Mapping[str, Any]) -> None:
        """Find the batch in a reply that is not an error; raise RemoteProtocolError if it has no cursor."""
        if "cursor" not in reply:
            raise RemoteProtocolError("a reply without a cursor")
        self.cursor: Mapping[str, Any] = reply["cursor"]
        self.cursor_id = int(self.cursor["id"])
        self.namespace: str = self.cursor["ns"]

    def documents(self) -> list[dict[str, Any]]:
        """Return the documents."""
        batch: list[dict[str, Any]] = self.cursor["nextBatch" if "nextBatch" in self.cursor else "firstBatch"]
        return batch


class RawBatch:
    """A batch within the frame of its reply, not decoded (see `CursorBatch`).

    Attributes:
        fields: the spans of the body's top-level fields in the frame.
        cursor: the spans of the fields of ``cursor`` in the frame.
    """

    __slots__ = ("_array", "cursor", "cursor_id", "fields", "frame", "namespace")

    def __init__(self, frame: bytes) -> None:
        """Find the batch in a reply.

        Raises:
            CommandError: the reply is an error (``ok: 0``).
            RemoteProtocolError: the reply has no valid cursor.
        """
        if Header(frame).opcode != OP_MSG or frame[_BODY_AT - 1]:
            raise RemoteProtocolError("a reply that is not a single document")
        self.frame = frame
        self.fields = rawbson.index(frame, _BODY_AT)
        span = self.fields.get(b"cursor")
        if span is None:
            end = _BODY_AT + rawbson.document_length(frame, _BODY_AT)
            raise CommandError.from_reply(rawbson.decode_document(frame[_BODY_AT:end]))
        if span[0] != rawbson.OBJECT:
            raise RemoteProtocolError("a cursor reply whose cursor is not a document")
        self.cursor = rawbson.index(frame, span[2])
        self._array = self._part(b"nextBatch" if b"nextBatch" in self.cursor else b"firstBatch", rawbson.ARRAY)
        self.cursor_id = int(_unpack_int64(frame, self._part(b"id", rawbson.INT64)[2])[0])
        self.namespace = str(rawbson.decode_value(frame, self._part(b"ns", rawbson.STRING)))

    @property
    def array(self) -> memoryview:
        """The documents as a raw BSON array, not copied."""
        return memoryview(self.frame)[self._array[2] : self._array[3]]

    @property
    def is_empty(self) -> bool:
        """Whether the batch has no documents."""
        return self._array[3] - self._array[2] == len(rawbson.EMPTY_DOCUMENT)

    def documents(self) -> list[bytes]:
        """Return the documents, each as bytes."""
        return rawbson.array_documents(self.frame, self._array)

    def count(self, expected: int) -> int:
        """Count the documents; fast if there are ``expected``, because they are not visited then."""
        frame, start, end = self.frame, self._array[2], self._array[3]
        if expected:
            key = b"\x03%d\0" % (expected - 1)
            position = frame.rfind(key, start, end)
            # A field of that name inside a document would end before the end of the array.
            if position >= 0 and position + len(key) + _unpack_int32(frame, position + len(key))[0] == end - 1:
                return expected
        return sum(1 for _ in rawbson.spans(frame, start))

    def _part(self, name: bytes, kind: int) -> rawbson.Span:
        span = self.cursor.get(name)
        if span is None or span[0] != kind:
            raise RemoteProtocolError(f"a cursor reply in which {name.decode()} is missing or of another type")
        return span


def documents_returned(frame: bytes) -> int:
    """Count the documents in the batch of a reply; 0 without a batch, or if it is malformed.

    The time hardly depends on their number (`last_index`). The count can be wrong if a value of the last document
    imitates an element of the array.
    """
    try:
        if frame.startswith(_FIRST_BATCH, _FIRST_BATCH_AT):
            at = _DOCUMENTS_AT
        elif frame.startswith(_NEXT_BATCH, _FIRST_BATCH_AT):
            at = _NEXT_DOCUMENTS_AT
        else:
            at = _unusual_batch_at(frame)
            if not at:
                return 0
        length = _unpack_int32(frame, at)[0]
        if length <= _EMPTY_BYTES:
            return 0
        if _unpack_int32(frame, at + _FIRST_DOCUMENT_AT)[0] + _FIRST_DOCUMENT_AT + 1 == length:
            return 1
        last = last_index(frame, at + 4, at + length - 1)
        return sum(1 for _ in rawbson.spans(frame, at)) if last is None else last + 1
    except (rawbson.InvalidBSONError, struct_error):
        return 0


def _unusual_batch_at(frame: bytes) -> int:
    """Return the offset of a batch that is not the first field of its cursor; 0 without one."""
    if not frame.startswith(CURSOR, FIRST_ELEMENT_AT):
        return 0
    fields = rawbson.index(frame, CURSOR_AT)
    batch = fields.get(b"firstBatch") or fields.get(b"nextBatch")
    return batch[2] if batch is not None and batch[0] == rawbson.ARRAY else 0


def last_index(data: bytes, start: int, end: int) -> int | None:
    """Return the index of an array's last document, which is its element name; None if it is not found quickly.

    The search runs backward from the end. Only the last element ends together with its array, because nested documents
    end before it.

    Args:
        start: an offset within the array or before it.
        end: the offset at which the elements end.
    """
    position = end
    for _ in range(_TRIED_MAX):
        position = data.rfind(_DOCUMENT, start, position)
        if position < 0:
            return None
        named = _INDEX.match(data, position + 1, end)
        if named is not None:
            value_at = named.end()
            if value_at + 4 <= end and value_at + _unpack_int32(data, value_at)[0] == end:
                return int(named[1])
    return None


def id_in_reply(frame: bytes) -> rawbson.Span | None:
    """Locate the cursor's id in the frame of a reply; None for an error."""
    cursor = rawbson.find(frame, b"cursor", _BODY_AT)
    return None if cursor is None or cursor[0] != rawbson.OBJECT else rawbson.find(frame, b"id", cursor[2])


def next_id_at(frame: bytes) -> int:
    """Return the offset of the cursor's id in a reply to a ``getMore``; 0 if it is not as mongod writes it."""
    return _id_after(frame, _NEXT_BATCH)


def first_id_at(frame: bytes) -> int:
    """Return the offset of the cursor's id in a reply that opened a cursor; 0 if it is not as mongod writes it."""
    return _id_after(frame, _FIRST_BATCH)


def _id_after(frame: bytes, batch: bytes) -> int:
    if not (frame.startswith(batch, _FIRST_BATCH_AT) and frame.startswith(CURSOR, FIRST_ELEMENT_AT)):
        return 0
    at: int = _FIRST_BATCH_AT + len(batch)
    at += _unpack_int32(frame, at)[0]
    return at + len(_ID) if frame.startswith(_ID, at) else 0


def is_whole_result_frame(frame: bytes) -> bool:
    """Whether a successful reply certainly contains the whole result.

    Its cursor begins with the first batch, then id 0, as mongod writes it.
    """
    return (
        frame.startswith(_FIRST_BATCH, _FIRST_BATCH_AT)
        and frame.startswith(CURSOR, FIRST_ELEMENT_AT)
        and frame.startswith(_NO_ID, _DOCUMENTS_AT + _unpack_int32(frame, _DOCUMENTS_AT)[0])
    )


def whole_result(frame: bytes, namespace: str) -> rawbson.DocumentArray | None:
    """Return the documents in a successful reply with a whole result; None unless its cursor is as mongod writes it.

    Raises:
        InvalidBSONError: the batch is not an array of documents.
    """
    if not is_whole_result_frame(frame):
        return None
    end = _DOCUMENTS_AT + _unpack_int32(frame, _DOCUMENTS_AT)[0]
    if not frame.startswith(end_of_whole_result(namespace), end):
        return None
    return rawbson.DocumentArray(frame, (rawbson.ARRAY, _FIRST_BATCH_AT, _DOCUMENTS_AT, end))


@lru_cache(_NAMESPACES_MAX)
def end_of_whole_result(namespace: str) -> bytes:
    """Return the bytes after the batch in the cursor of a whole result: id 0 and the namespace."""
    return _NO_ID + rawbson.element(b"ns", rawbson.STRING, rawbson.string_value(namespace)) + b"\0"
