"""BSON documents read where they lie, one level at a time, without decoding what is only passed on.

A document is a ``bytes`` object and is never copied to be looked at. A *span* says where one element of it is:
``(type, element_start, value_start, value_end)``, offsets into the bytes object, with the element's type byte at
``element_start`` and its value in ``[value_start, value_end)``. Spans are plain tuples because a router makes some ten
of them for every operation.

The layout of each type is that of the BSON specification, version 1.1 (https://bsonspec.org/spec.html).
"""

from collections.abc import Container, Iterable, Iterator, Mapping
from struct import Struct
from typing import Any, Final, TypeAlias

import bson
from bson.binary import Binary
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.errors import InvalidBSON
from bson.raw_bson import RawBSONDocument

Span: TypeAlias = tuple[int, int, int, int]
"""``(type, element_start, value_start, value_end)``."""

DOUBLE: Final = 0x01
STRING: Final = 0x02
OBJECT: Final = 0x03
ARRAY: Final = 0x04
BINARY: Final = 0x05
UNDEFINED: Final = 0x06
OBJECT_ID: Final = 0x07
BOOL: Final = 0x08
DATE: Final = 0x09
NULL: Final = 0x0A
REGEX: Final = 0x0B
DB_POINTER: Final = 0x0C
CODE: Final = 0x0D
SYMBOL: Final = 0x0E
CODE_WITH_SCOPE: Final = 0x0F
INT32: Final = 0x10
TIMESTAMP: Final = 0x11
INT64: Final = 0x12
DECIMAL128: Final = 0x13
MIN_KEY: Final = 0xFF
MAX_KEY: Final = 0x7F

EMPTY_DOCUMENT: Final = b"\x05\x00\x00\x00\x00"

DOCUMENT_BYTES_MIN: Final = 5

# How long the value of each type is: a fixed count, or a way to read it from the value's first bytes.
_LENGTH_PREFIXED = -1  # int32 length, then that many bytes (strings)
_SELF_SIZED = -2  # int32 length that counts itself (documents, code with scope)
_BINARY = -3  # int32 length, a subtype byte, then the bytes
_REGEX = -4  # two C strings
_DB_POINTER = -5  # a string and an ObjectId
_INVALID = -6

_SIZES: Final = [_INVALID] * 256
for _type, _size in {
    DOUBLE: 8,
    STRING: _LENGTH_PREFIXED,
    OBJECT: _SELF_SIZED,
    ARRAY: _SELF_SIZED,
    BINARY: _BINARY,
    UNDEFINED: 0,
    OBJECT_ID: 12,
    BOOL: 1,
    DATE: 8,
    NULL: 0,
    REGEX: _REGEX,
    DB_POINTER: _DB_POINTER,
    CODE: _LENGTH_PREFIXED,
    SYMBOL: _LENGTH_PREFIXED,
    CODE_WITH_SCOPE: _SELF_SIZED,
    INT32: 4,
    TIMESTAMP: 8,
    INT64: 8,
    DECIMAL128: 16,
    MIN_KEY: 0,
    MAX_KEY: 0,
}.items():
    _SIZES[_type] = _size

_INT32 = Struct("<i")
_unpack_int32 = _INT32.unpack_from
_pack_int32 = _INT32.pack

VALUE_CODEC: Final[CodecOptions[dict[str, Any]]] = CodecOptions(
    document_class=dict, tz_aware=False, datetime_conversion=DatetimeConversion.DATETIME_AUTO
)
"""How values are decoded where a daemon needs them: UUIDs stay ``Binary``, dates out of Python's range are kept."""

_LENIENT_CODEC: Final = VALUE_CODEC.with_options(unicode_decode_error_handler="replace")


class InvalidBSONError(ValueError):
    """The bytes are not a well-formed BSON document."""


def spans(document: bytes, start: int = 0) -> Iterator[tuple[bytes, Span]]:
    """The elements of the document that begins at ``start``, in order, as ``(name, span)``.

    Raises:
        InvalidBSONError: a length or a type that cannot be, met on the way.
    """
    end = _document_end(document, start)
    position = start + 4
    while True:
        kind = document[position]
        if kind == 0:
            if position != end - 1:
                raise InvalidBSONError("a document ends before its length says")
            return
        name_end = document.find(b"\0", position + 1, end)
        if name_end < 0:
            raise InvalidBSONError("an element name without an end")
        value_start = name_end + 1
        size = _SIZES[kind]
        if size < 0:
            size = _variable_size(document, kind, size, value_start, end)
        value_end = value_start + size
        if value_end >= end:
            raise InvalidBSONError("an element reaches past the end of its document")
        yield document[position + 1 : name_end], (kind, position, value_start, value_end)
        position = value_end


def index(document: bytes, start: int = 0) -> dict[bytes, Span]:
    """All elements of one document by name, in their order; of elements with the same name, the last.

    Written out instead of calling `spans`, and with the commonest types first, since every message that a daemon
    handles goes through here.

    Raises:
        InvalidBSONError: as `spans`.
    """
    end = _document_end(document, start)
    found: dict[bytes, Span] = {}
    position = start + 4
    find = document.find
    sizes = _SIZES
    while kind := document[position]:
        value_start = find(b"\0", position + 1, end) + 1
        if not value_start:
            raise InvalidBSONError("an element name without an end")
        size = sizes[kind]
        if size < 0:
            # A length that reaches past the end is caught below, one that is too small here.
            if kind <= ARRAY and value_start + 4 < end:
                size = _unpack_int32(document, value_start)[0]
                if size < DOCUMENT_BYTES_MIN:
                    size = _variable_size(document, kind, sizes[kind], value_start, end)
                elif kind == STRING:
                    size += 4
            else:
                size = _variable_size(document, kind, size, value_start, end)
        value_end = value_start + size
        if value_end >= end:
            raise InvalidBSONError("an element reaches past the end of its document")
        found[document[position + 1 : value_start - 1]] = (kind, position, value_start, value_end)
        position = value_end
    if position != end - 1:
        raise InvalidBSONError("a document ends before its length says")
    return found


def find(document: bytes, name: bytes, start: int = 0) -> Span | None:
    """The first element of that name in the document that begins at ``start``, which is walked no further; or None.

    Raises:
        InvalidBSONError: as `spans`.
    """
    end = _document_end(document, start)
    terminated = name + b"\0"
    position = start + 4
    while kind := document[position]:
        is_found = document.startswith(terminated, position + 1)
        value_start = document.find(b"\0", position + 1, end) + 1
        if not value_start:
            raise InvalidBSONError("an element name without an end")
        size = _SIZES[kind]
        if size < 0:
            size = _variable_size(document, kind, size, value_start, end)
        value_end = value_start + size
        if value_end >= end:
            raise InvalidBSONError("an element reaches past the end of its document")
        if is_found:
            return kind, position, value_start, value_end
        position = value_end
    if position != end - 1:
        raise InvalidBSONError("a document ends before its length says")
    return None


def deciding_bytes(kind: int) -> int | None:
    """How many bytes at the beginning of a value of a type say how long it is; None if it has to be read to its end."""
    size = _SIZES[kind]
    if size >= 0:
        return 0
    return None if size == _REGEX else _INT32.size


def document_length(document: bytes, start: int = 0) -> int:
    """The length in bytes that the document at ``start`` gives itself, checked against the bytes that are there."""
    return _document_end(document, start) - start


class VerbatimDocument(dict[str, Any]):
    """A nested document with values that Python cannot hold exactly; encoded again, it is the same bytes.

    Attributes:
        raw: the bytes, which pymongo's encoder copies in place of the values, as it does those of a `RawBSONDocument`.
    """

    _type_marker = RawBSONDocument._type_marker

    def __init__(self, raw: bytes) -> None:
        """Decode as far as possible.

        Raises:
            InvalidBSONError: it is not well-formed.
        """
        super().__init__(_decode_leniently(raw))
        self.raw = raw


def decode_document(document: bytes) -> dict[str, Any]:
    """A document decoded by pymongo's codec with `VALUE_CODEC`, also where that codec refuses what a mongod accepts.

    A mongod checks neither that text is UTF-8 nor the length that binary data of the old subtype 2 give themselves.
    Text then has replacement characters, data of such a length come whole, and nested documents that hold any of it
    are `VerbatimDocument`.

    Raises:
        InvalidBSONError: it is not well-formed.
    """
    try:
        return bson.decode(document, codec_options=VALUE_CODEC)
    except InvalidBSON:
        return _decode_leniently(document)


def decode_value(document: bytes, span: Span) -> Any:  # noqa: ANN401 - a BSON value can be anything
    """The Python value of one element; as `decode_document`.

    Raises:
        InvalidBSONError: it is not well-formed.
    """
    kind, _, value_start, value_end = span
    if kind == INT32:
        return _unpack_int32(document, value_start)[0]
    if kind == STRING:
        return document[value_start + 4 : value_end - 1].decode(errors="replace")
    value = document[value_start:value_end]
    try:
        if kind == OBJECT:
            return bson.decode(value, codec_options=VALUE_CODEC)
        return bson.decode(wrap_value(kind, value), codec_options=VALUE_CODEC)[""]
    except InvalidBSON:
        return _decode_value_leniently(kind, value)


def _decode_leniently(document: bytes) -> dict[str, Any]:
    return {name.decode(errors="replace"): decode_value(document, span) for name, span in spans(document)}


def _decode_value_leniently(kind: int, value: bytes) -> Any:  # noqa: ANN401 - a BSON value can be anything
    if kind == OBJECT:
        return VerbatimDocument(value)
    if kind == ARRAY:
        return [decode_value(value, span) for _, span in spans(value)]
    if kind == BINARY:
        return Binary(value[5:], value[4])
    try:
        return bson.decode(wrap_value(kind, value), codec_options=_LENIENT_CODEC)[""]
    except InvalidBSON as error:
        raise InvalidBSONError(str(error)) from error


def wrap_value(kind: int, value: bytes, name: bytes = b"") -> bytes:
    """A document of one element with the given name, type byte and raw value."""
    return _pack_int32(len(value) + len(name) + 7) + bytes((kind,)) + name + b"\0" + value + b"\0"


def element(name: bytes, kind: int, value: bytes) -> bytes:
    """The bytes of one element, ready for `append`."""
    return bytes((kind,)) + name + b"\0" + value


def encode_document(document: Mapping[str, Any]) -> bytes:
    """``document`` with its fields in their order, as keys, bounds and patterns need it.

    The codec moves ``_id`` to the front of a document that it encodes by itself, as drivers do with what they insert;
    it leaves nested documents alone.
    """
    return bson.encode({"": document})[6:-1]


def encode_elements(fields: Mapping[str, Any]) -> bytes:
    """The elements of ``fields`` without the document around them, ready for `append`."""
    return bson.encode(fields)[4:-1]


def from_elements(elements: bytes) -> bytes:
    """A document made of elements that lie one behind the other."""
    return _pack_int32(len(elements) + 5) + elements + b"\0"


def append(document: bytes, elements: bytes) -> bytes:
    """``document`` with ``elements`` added at its end; its own bytes are copied, not re-encoded."""
    return _pack_int32(len(document) + len(elements)) + document[4:-1] + elements + b"\0"


def with_value(document: bytes, span: Span, value: bytes) -> bytes:
    """``document`` with the value of one of its top-level elements replaced by another one of the same type."""
    return from_elements(document[4 : span[2]] + value + document[span[3] : len(document) - 1])


def without(document: bytes, names: Container[bytes]) -> bytes:
    """``document`` less its top-level elements of the given names; itself when it has none of them."""
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


def without_spans(document: bytes, removed: Iterable[Span]) -> bytes:
    """``document`` less some of its top-level elements, which are given in their order."""
    kept: list[bytes] = []
    kept_from = 4
    for _, element_start, _, value_end in removed:
        kept.append(document[kept_from:element_start])
        kept_from = value_end
    kept.append(document[kept_from : len(document) - 1])
    return from_elements(b"".join(kept))


def array_documents(document: bytes, span: Span) -> list[bytes]:
    """The sub-documents of an array element, each as its own bytes.

    Raises:
        InvalidBSONError: the element is not an array of documents.
    """
    if span[0] != ARRAY:
        raise InvalidBSONError("not an array")
    found: list[bytes] = []
    # Written out instead of calling `spans`: migrations cut millions of documents here.
    position, end = span[2] + 4, _document_end(document, span[2]) - 1
    while kind := document[position]:
        if kind != OBJECT:
            raise InvalidBSONError("an array element that is not a document")
        value_start = document.find(b"\0", position + 1, end) + 1
        if not value_start or value_start + DOCUMENT_BYTES_MIN > end:
            raise InvalidBSONError("an array element that does not end with its array")
        length = _unpack_int32(document, value_start)[0]
        position = value_start + length
        if length < DOCUMENT_BYTES_MIN or position > end:
            raise InvalidBSONError("an array element that does not end with its array")
        found.append(document[value_start:position])
    if position != end:
        raise InvalidBSONError("an array ends before its length says")
    return found


def array_of_documents(documents: list[bytes]) -> bytes:
    """The raw value of a BSON array that holds the given documents (the reverse of `array_documents`)."""
    return from_elements(
        b"".join([b"\x03%d\0%b" % (position, document) for position, document in enumerate(documents)])
    )


def raw_document(document: bytes) -> RawBSONDocument:
    """A mapping that pymongo's encoder copies verbatim when it stands inside another document."""
    try:
        return RawBSONDocument(document)
    except InvalidBSON as error:
        raise InvalidBSONError(str(error)) from error


def depth_exceeds(document: bytes, levels: int, start: int = 0) -> bool:
    """Whether documents and arrays are nested in ``document`` more than ``levels`` deep (itself counted)."""
    if levels == 0:
        return True
    for _, (kind, _, value_start, _) in spans(document, start):
        if kind in (OBJECT, ARRAY) and depth_exceeds(document, levels - 1, value_start):
            return True
    return False


def _document_end(document: bytes, start: int) -> int:
    if len(document) - start < DOCUMENT_BYTES_MIN:
        raise InvalidBSONError("a document shorter than five bytes")
    length = _unpack_int32(document, start)[0]
    if length < DOCUMENT_BYTES_MIN or start + length > len(document):
        raise InvalidBSONError(f"a document length of {length} where {len(document) - start} bytes are there")
    return start + int(length)


def _variable_size(document: bytes, kind: int, way: int, value_start: int, end: int) -> int:
    """The byte length of a value whose type does not fix it."""
    if way == _REGEX:
        options = document.find(b"\0", value_start, end) + 1
        value_end = document.find(b"\0", options, end) + 1
        if not options or not value_end:
            raise InvalidBSONError("a regular expression without an end")
        return value_end - value_start
    if way == _INVALID:
        raise InvalidBSONError(f"no BSON type 0x{kind:02x}")
    if value_start + 4 > end:
        raise InvalidBSONError("an element reaches past the end of its document")
    length = int(_unpack_int32(document, value_start)[0])
    if way == _LENGTH_PREFIXED:
        if length < 1:
            raise InvalidBSONError("a string shorter than its terminator")
        return length + 4
    if way == _SELF_SIZED:
        if length < DOCUMENT_BYTES_MIN:
            raise InvalidBSONError("an embedded document shorter than five bytes")
        return length
    if length < 0:
        raise InvalidBSONError("a negative length")
    return length + (5 if way == _BINARY else 16)
