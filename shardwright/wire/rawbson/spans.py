"""BSON types with MongoDB's names, and locating the elements of a document, with bounds checks, one level at a time.

The specification of the types is https://bsonspec.org/spec.html.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Any, Final, TypeAlias

import bson

Span: TypeAlias = tuple[int, int, int, int]
"""``(type, element_start, value_start, value_end)``."""

INT32_STRUCT: Final = Struct("<i")

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

_unpack_int32 = INT32_STRUCT.unpack_from

# The size of each type's values, or the way to read it from the value's first bytes.
_LENGTH_PREFIXED = -1  # int32 length, then that many bytes (strings)
_SELF_SIZED = -2  # int32 length that counts itself (documents, code with scope)
_BINARY = -3  # int32 length, a subtype byte, then the bytes
_REGEX = -4  # two C strings
_DB_POINTER = -5  # a string and an ObjectId
_INVALID = -6

_SIZES: Final = [_INVALID] * 256


class InvalidBSONError(ValueError):
    """The bytes are not a well-formed BSON document."""


_TYPE_NAMES: Final = {
    DOUBLE: "double",
    STRING: "string",
    OBJECT: "object",
    ARRAY: "array",
    BINARY: "binData",
    UNDEFINED: "undefined",
    OBJECT_ID: "objectId",
    BOOL: "bool",
    DATE: "date",
    NULL: "null",
    REGEX: "regex",
    DB_POINTER: "dbPointer",
    CODE: "javascript",
    SYMBOL: "symbol",
    CODE_WITH_SCOPE: "javascriptWithScope",
    INT32: "int",
    TIMESTAMP: "timestamp",
    INT64: "long",
    DECIMAL128: "decimal",
    MIN_KEY: "minKey",
    MAX_KEY: "maxKey",
}

_BINARY_TYPE_NAMES: Final = {
    0: "general",
    1: "function",
    2: "byte(deprecated)",
    3: "UUID(deprecated)",
    4: "UUID",
    5: "MD5",
    6: "encrypt",
}


def binary_type_name(subtype: int) -> str:
    """Return MongoDB's name of a subtype of binary data."""
    return _BINARY_TYPE_NAMES.get(subtype, "unknown")


def type_name(kind: int) -> str:
    """Return MongoDB's name of a BSON type, given its type byte, which must be valid."""
    return _TYPE_NAMES[kind]


def type_name_of(value: Any) -> str:  # noqa: ANN401 - a BSON value can be anything
    """Return MongoDB's name of the type of a decoded value."""
    return type_name(type_of(value))


def type_of(value: Any) -> int:  # noqa: ANN401 - as above
    """Return the type byte of a decoded value."""
    return bson.encode({"": value})[4]


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


def spans(document: bytes, start: int = 0) -> Iterator[tuple[bytes, Span]]:
    """Yield the elements of the document at ``start``, in order, as ``(name, span)``."""
    end = document_end(document, start)
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
    """Index the elements of a document by name, in their order; of elements with the same name, the last.

    This repeats the loop of `spans`, with the most common types first, because every message of a daemon is indexed.
    """
    end = document_end(document, start)
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
            # Lengths that are too small are caught here, lengths that are too large below.
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
    """Find the first element of that name in the document at ``start``. Later elements are not checked."""
    end = document_end(document, start)
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
    """Return the number of leading bytes that determine a value's length; None if it must be read to its end."""
    size = _SIZES[kind]
    if size >= 0:
        return 0
    return None if size == _REGEX else INT32_STRUCT.size


def document_length(document: bytes, start: int = 0) -> int:
    """Return the length prefix of the document at ``start``, checked against the available bytes."""
    return document_end(document, start) - start


def depth_exceeds(document: bytes, levels: int, start: int = 0) -> bool:
    """Whether ``document`` is nested more than ``levels`` deep, including itself."""
    if levels == 0:
        return True
    for _, (kind, _, value_start, _) in spans(document, start):
        if kind in (OBJECT, ARRAY) and depth_exceeds(document, levels - 1, value_start):
            return True
    return False


def document_end(document: bytes, start: int) -> int:
    if len(document) - start < DOCUMENT_BYTES_MIN:
        raise InvalidBSONError("a document shorter than five bytes")
    length = _unpack_int32(document, start)[0]
    if length < DOCUMENT_BYTES_MIN or start + length > len(document):
        raise InvalidBSONError(f"a document length of {length} where {len(document) - start} bytes are there")
    return start + int(length)


def _variable_size(document: bytes, kind: int, way: int, value_start: int, end: int) -> int:
    """Return the byte length of a value of a type without a fixed one."""
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


def spans_at_any_depth(document: bytes) -> Iterator[tuple[bytes, Span]]:
    """Yield the names and spans of all elements at all levels, including repeated names."""
    pending = [0]
    while pending:
        for each in spans(document, pending.pop()):
            yield each
            kind, _, value_start, _ = each[1]
            if kind in (OBJECT, ARRAY):
                pending.append(value_start)
