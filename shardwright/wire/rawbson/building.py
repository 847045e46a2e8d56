"""Building documents from existing bytes: appending, removing and joining elements; splitting and building arrays."""

from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from struct import Struct
from struct import error as struct_error
from typing import Any, Final

import bson
from bson.errors import InvalidBSON
from bson.raw_bson import RawBSONDocument

from shardwright.wire.rawbson.spans import (
    ARRAY,
    DOCUMENT_BYTES_MIN,
    INT32_STRUCT,
    OBJECT,
    InvalidBSONError,
    Span,
    document_end,
    spans,
)

_pack_int32 = INT32_STRUCT.pack

_unpack_int32 = INT32_STRUCT.unpack_from

_HEADERS: Final = tuple(b"%c%d\0" % (OBJECT, number) for number in range(1_024))
"""Bytes before each document of an array."""

_HEADER_READERS: Final = {size: Struct(f"<{size}si").unpack_from for size in map(len, _HEADERS)}
_READ_HEADERS: Final = tuple((header, len(header), _HEADER_READERS[len(header)]) for header in _HEADERS)
"""Each header with its length, and a reader of the header and the document's length."""


def wrap_value(kind: int, value: bytes, name: bytes = b"") -> bytes:
    """Build a document of one element with the given name, type byte and raw value."""
    return _pack_int32(len(value) + len(name) + 7) + bytes((kind,)) + name + b"\0" + value + b"\0"


def element(name: bytes, kind: int, value: bytes) -> bytes:
    """Build the bytes of one element, ready for `append`."""
    return bytes((kind,)) + name + b"\0" + value


def string_value(text: str | bytes) -> bytes:
    """Build the raw value of a string, given as text or in UTF-8."""
    encoded = text.encode() if isinstance(text, str) else text
    return _pack_int32(len(encoded) + 1) + encoded + b"\0"


def encode_document(document: Mapping[str, Any]) -> bytes:
    """Encode ``document`` and keep the order of its fields, which matters for keys, bounds and patterns.

    The codec moves ``_id`` to the front of a top-level document, as drivers do for inserts, but not in nested ones.
    """
    return bson.encode({"": document})[6:-1]


def encode_elements(fields: Mapping[str, Any]) -> bytes:
    """Encode ``fields`` as elements without a document around them, ready for `append`."""
    return bson.encode(fields)[4:-1]


def from_elements(elements: bytes) -> bytes:
    """Build a document of concatenated elements."""
    return _pack_int32(len(elements) + 5) + elements + b"\0"


def append(document: bytes, elements: bytes) -> bytes:
    """Add ``elements`` at the end of ``document``, copying its bytes without re-encoding."""
    return _pack_int32(len(document) + len(elements)) + document[4:-1] + elements + b"\0"


def with_value(document: bytes, span: Span, value: bytes) -> bytes:
    """Replace the value of a top-level element by another value of the same type."""
    return from_elements(document[4 : span[2]] + value + document[span[3] : len(document) - 1])


def without(document: bytes, names: Container[bytes]) -> bytes:
    """Remove top-level elements by name; return the same object if ``document`` has none of them."""
    kept: list[bytes] = []
    kept_from = 4
    for name, (_, element_start, _, value_end) in spans(document):
        if name in names:
            kept.append(document[kept_from:element_start])
            kept_from = value_end
    if not kept:
        return document
    kept.append(document[kept_from : len(document) - 1])
    return from_elements(b"".join(kept))


def without_spans(document: bytes, removed: Iterable[Span], more: bytes = b"") -> bytes:
    """Remove top-level elements, whose spans are given in order, and append ``more`` elements."""
    kept: list[bytes] = []
    kept_from = 4
    for _, element_start, _, value_end in removed:
        kept.append(document[kept_from:element_start])
        kept_from = value_end
    kept += (document[kept_from : len(document) - 1], more)
    return from_elements(b"".join(kept))


def raw_document(document: bytes) -> RawBSONDocument:
    """Wrap a document into a mapping that pymongo's encoder copies verbatim when it is nested in another document."""
    try:
        return RawBSONDocument(document)
    except InvalidBSON as error:
        raise InvalidBSONError(str(error)) from error


class DocumentArray:
    """The documents of the array at ``span`` of ``data``, cut out on demand."""

    __slots__ = ("_data", "_end", "_number", "_position")

    def __init__(self, data: bytes, span: Span) -> None:
        if span[0] != ARRAY:
            raise InvalidBSONError("not an array")
        self._data = data
        self._position = span[2] + 4
        self._end = document_end(data, span[2]) - 1
        self._number = 0

    def __bool__(self) -> bool:
        """Whether documents are left."""
        return self._position != self._end

    @property
    def held_bytes(self) -> int:
        """Memory held while documents are left."""
        return len(self._data)

    def take(self, count: int) -> list[bytes]:
        """Return the next ``count`` documents, or fewer at the end, each as its own bytes."""
        # This does not call `spans`, because migrations split millions of documents here. The usual form is tried
        # first: names that count from 0. `_take_any` accepts any names, and detects errors.
        found: list[bytes] = []
        data, position, end, number = self._data, self._position, self._end, self._number
        with suppress(struct_error):  # the data ends
            for header, header_bytes, read in _READ_HEADERS[number : number + count]:
                name, length = read(data, position)
                value_start = position + header_bytes
                value_end = value_start + length
                if name != header or length < DOCUMENT_BYTES_MIN or value_end > end:
                    break
                found.append(data[value_start:value_end])
                position = value_end
        self._position = position
        self._number = number + len(found)
        if len(found) < count:
            self._take_any(found, count)
        return found

    def _take_any(self, found: list[bytes], count: int) -> None:
        data, position, end = self._data, self._position, self._end
        while len(found) < count and (kind := data[position]):
            if kind != OBJECT:
                raise InvalidBSONError("an array element that is not a document")
            value_start = data.find(b"\0", position + 1, end) + 1
            if not value_start or value_start + DOCUMENT_BYTES_MIN > end:
                raise InvalidBSONError("an array element that does not end with its array")
            length = _unpack_int32(data, value_start)[0]
            position = value_start + length
            if length < DOCUMENT_BYTES_MIN or position > end:
                raise InvalidBSONError("an array element that does not end with its array")
            found.append(data[value_start:position])
        if len(found) < count and position != end:
            raise InvalidBSONError("an array ends before its length says")
        self._position = position


def array_documents(document: bytes, span: Span) -> list[bytes]:
    """Return the documents of an array element, each as its own bytes."""
    return DocumentArray(document, span).take(len(document))


def array_elements(documents: Sequence[bytes]) -> list[bytes]:
    """Return the pieces of an array of documents, between its length and its end."""
    count = len(documents)
    pieces = [b""] * (2 * count)
    pieces[0::2] = _HEADERS[:count] + tuple(b"%c%d\0" % (OBJECT, number) for number in range(len(_HEADERS), count))
    pieces[1::2] = documents
    return pieces


def array_of_documents(documents: Sequence[bytes]) -> bytes:
    """Build the raw value of an array of documents; inverse of `array_documents`."""
    return from_elements(b"".join(array_elements(documents)))
