"""Building documents from existing bytes: appending, removing and joining elements."""

from collections.abc import Container, Iterable, Mapping
from typing import Any

import bson
from bson.errors import InvalidBSON
from bson.raw_bson import RawBSONDocument

from shardwright.wire.rawbson.spans import spans
from shardwright.wire.rawbson.types import INT32_STRUCT, InvalidBSONError, Span

_pack_int32 = INT32_STRUCT.pack


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
