"""BSON values as byte strings that compare like the values do.

``encode_value(a) < encode_value(b)`` exactly when MongoDB sorts ``a`` before ``b``, and values that MongoDB holds equal
(``1``, ``1.0``, ``NumberLong(1)``; a string and a symbol) have equal bytes. The encoding of a compound key is the
concatenation of its parts. So a routing table is a sorted array of byte strings, and a look-up is a bisection.

Order across types, ascending: MinKey, undefined, null, numbers, strings and symbols, objects, arrays, binary, ObjectId,
bool, date, timestamp, regular expression, DBPointer, code, code with scope, MaxKey. Comparison is MongoDB's simple
(binary) one: chunk bounds never use a collation.

The first byte of every encoding is its type's rank. No rank is ``0x00``, which ends objects, arrays and strings, or
``0xFF``, which follows an escaped NUL inside strings: so ``"a"`` followed by any further key part still comes
before ``"a\\0"``, and ``encoding + AFTER`` lies behind every key that begins with ``encoding``.
"""

from collections.abc import Callable
from struct import Struct
from typing import Final, TypeAlias

from shardwright.sharding.number_order import NEGATIVE, encode_decimal128, encode_double, encode_int32, encode_int64
from shardwright.wire import rawbson
from shardwright.wire.rawbson import Span

AFTER: Final = b"\xfe"
"""Appended to encoded values: greater than every key that begins with them, less than every greater value."""

_MIN_KEY: Final = b"\x10"
_UNDEFINED: Final = b"\x18"
_NULL: Final = b"\x20"
_STRING: Final = b"\x38"
_OBJECT: Final = b"\x40"
_ARRAY: Final = b"\x48"
_BINARY: Final = b"\x50"
_OBJECT_ID: Final = b"\x58"
_BOOL: Final = b"\x60"
_DATE: Final = 0x68
_TIMESTAMP: Final = 0x70
_REGEX: Final = b"\x78"
_DB_POINTER: Final = b"\x80"
_CODE: Final = b"\x88"
_CODE_WITH_SCOPE: Final = b"\x90"
_MAX_KEY: Final = b"\xf0"

ENCODED_MIN_KEY: Final = _MIN_KEY
ENCODED_UNDEFINED: Final = _UNDEFINED
ENCODED_NULL: Final = _NULL
ENCODED_MAX_KEY: Final = _MAX_KEY

Encoder: TypeAlias = Callable[[bytes, int, int], bytes]

_unpack_int64 = Struct("<q").unpack_from
_unpack_uint64 = Struct("<Q").unpack_from
_pack_ranked_uint64 = Struct(">BQ").pack
_unpack_int32 = Struct("<i").unpack_from

_INT64_SIGN: Final = 1 << 63


def encode_value(document: bytes, span: Span) -> bytes:
    """The order-preserving bytes of one value.

    Raises:
        InvalidBSONError: an object, array or code with scope that is not well-formed.
    """
    return _ENCODERS[span[0]](document, span[2], span[3])


def encoder_of(kind: int) -> Encoder:
    """What encodes values of one type; called with a document and the start and the end of the value in it."""
    return _ENCODERS[kind]


def encode_key(key: bytes, start: int = 0) -> bytes:
    """The order-preserving bytes of a compound key: the values of the document ``key``, whatever their names.

    Raises:
        InvalidBSONError: ``key`` is not a well-formed document.
    """
    encoders = _ENCODERS
    if not start:  # most keys have one field, and tables are built of a million of them
        kind, value = key[4], key.find(0, 5) + 1
        if len(key) == value + _FIXED_SIZES[kind] + 1 and not key[-1]:
            return encoders[kind](key, value, len(key) - 1)
    return b"".join([encoders[kind](key, value, end) for _, (kind, _, value, end) in rawbson.spans(key, start)])


def _constant(encoding: bytes) -> Encoder:
    def encode(_document: bytes, _start: int, _end: int) -> bytes:
        return encoding

    return encode


def _terminated(value: bytes) -> bytes:
    return value.replace(b"\0", b"\0\xff") + b"\0"


def _encode_string(document: bytes, start: int, end: int) -> bytes:
    return _STRING + document[start + 4 : end - 1].replace(b"\0", b"\0\xff") + b"\0"


def _encode_object_id(document: bytes, start: int, end: int) -> bytes:
    return _OBJECT_ID + document[start:end]


def _encode_date(document: bytes, start: int, _end: int) -> bytes:
    return _pack_ranked_uint64(_DATE, _unpack_int64(document, start)[0] + _INT64_SIGN)


def _encode_timestamp(document: bytes, start: int, _end: int) -> bytes:
    return _pack_ranked_uint64(_TIMESTAMP, _unpack_uint64(document, start)[0])


def _encode_bool(document: bytes, start: int, end: int) -> bytes:
    return _BOOL + document[start:end]


def _encode_binary(document: bytes, start: int, end: int) -> bytes:
    """Length first, then subtype, then bytes."""
    length = end - start - 5
    return _BINARY + length.to_bytes(4, "big") + document[start + 4 : end]


def _encode_regex(document: bytes, start: int, end: int) -> bytes:
    """Pattern, then options: both are C strings already."""
    return _REGEX + document[start:end]


def _encode_db_pointer(document: bytes, start: int, end: int) -> bytes:
    """Length of the namespace first, then namespace and ObjectId."""
    return _DB_POINTER + (end - start).to_bytes(4, "big") + document[start + 4 : end]


def _encode_code(document: bytes, start: int, end: int) -> bytes:
    return _CODE + _terminated(document[start + 4 : end - 1])


def _encode_code_with_scope(document: bytes, start: int, end: int) -> bytes:
    code_start = start + 8
    scope_start = code_start + int(_unpack_int32(document, start + 4)[0])
    if not code_start < scope_start <= end - rawbson.DOCUMENT_BYTES_MIN:
        raise rawbson.InvalidBSONError("code with scope whose code reaches past its end")
    return _CODE_WITH_SCOPE + _terminated(document[code_start : scope_start - 1]) + _fields(document, scope_start)


def _encode_object(document: bytes, start: int, _end: int) -> bytes:
    return _OBJECT + _fields(document, start)


def _encode_array(document: bytes, start: int, _end: int) -> bytes:
    """Elements one by one; a shorter array comes first."""
    return _ARRAY + encode_key(document, start) + b"\0"


def _fields(document: bytes, start: int) -> bytes:
    """Fields in their order, each compared by type, then name, then value."""
    parts: list[bytes] = []
    for name, (kind, _, value_start, value_end) in rawbson.spans(document, start):
        parts += (RANKS[kind], name, b"\0", _ENCODERS[kind](document, value_start, value_end))
    parts.append(b"\0")
    return b"".join(parts)


def _invalid(_document: bytes, _start: int, _end: int) -> bytes:
    raise rawbson.InvalidBSONError("no such BSON type")


RANKS: Final = [b"\0"] * 256
"""By type byte: the rank, one for all numbers, that precedes a field's name in an object."""

_ENCODERS: Final[list[Encoder]] = [_invalid] * 256

_FIXED_SIZES: Final = [-6] * 256  # so that other values never seem to fill a document
for _kind, _size in (
    (rawbson.DOUBLE, 8),
    (rawbson.OBJECT_ID, 12),
    (rawbson.BOOL, 1),
    (rawbson.DATE, 8),
    (rawbson.INT32, 4),
    (rawbson.TIMESTAMP, 8),
    (rawbson.INT64, 8),
    (rawbson.DECIMAL128, 16),
):
    _FIXED_SIZES[_kind] = _size
for _kind, _rank, _encoder in (
    (rawbson.MIN_KEY, _MIN_KEY, _constant(_MIN_KEY)),
    (rawbson.UNDEFINED, _UNDEFINED, _constant(_UNDEFINED)),
    (rawbson.NULL, _NULL, _constant(_NULL)),
    (rawbson.INT32, NEGATIVE, encode_int32),
    (rawbson.INT64, NEGATIVE, encode_int64),
    (rawbson.DOUBLE, NEGATIVE, encode_double),
    (rawbson.DECIMAL128, NEGATIVE, encode_decimal128),
    (rawbson.STRING, _STRING, _encode_string),
    (rawbson.SYMBOL, _STRING, _encode_string),
    (rawbson.OBJECT, _OBJECT, _encode_object),
    (rawbson.ARRAY, _ARRAY, _encode_array),
    (rawbson.BINARY, _BINARY, _encode_binary),
    (rawbson.OBJECT_ID, _OBJECT_ID, _encode_object_id),
    (rawbson.BOOL, _BOOL, _encode_bool),
    (rawbson.DATE, bytes((_DATE,)), _encode_date),
    (rawbson.TIMESTAMP, bytes((_TIMESTAMP,)), _encode_timestamp),
    (rawbson.REGEX, _REGEX, _encode_regex),
    (rawbson.DB_POINTER, _DB_POINTER, _encode_db_pointer),
    (rawbson.CODE, _CODE, _encode_code),
    (rawbson.CODE_WITH_SCOPE, _CODE_WITH_SCOPE, _encode_code_with_scope),
    (rawbson.MAX_KEY, _MAX_KEY, _constant(_MAX_KEY)),
):
    RANKS[_kind] = _rank
    _ENCODERS[_kind] = _encoder
