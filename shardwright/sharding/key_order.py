r"""BSON values as byte strings with the order of the values.

The encoding of a positive number ``v`` begins with the greatest double that is not above ``v``, as its eight big-endian
bytes (positive doubles compare like these). It ends with ``0x00`` if that double is ``v``. Otherwise ``0x01`` and the
exact decimal form of ``v`` follow: its decimal exponent and its digits. Only large int64s and Decimal128s have this
second part, and equal values of both types share it. A negative number is the encoding of its magnitude with every
bit inverted. Zero, of either sign, counts as positive. NaNs are all equal and come first.

Each of the three forms begins with its own rank byte, which has its place in the order of all types.

``encode_value(a) < encode_value(b)`` exactly when MongoDB sorts ``a`` before ``b``. Values that MongoDB treats as equal
(``1``, ``1.0``, ``NumberLong(1)``; a string and a symbol) have equal bytes. The encoding of a compound key is the
concatenation of its parts. So a routing table is a sorted array of byte strings, and a look-up is a bisection.

Order across types, ascending: MinKey, undefined, null, numbers, strings and symbols, objects, arrays, binary, ObjectId,
bool, date, timestamp, regular expression, DBPointer, code, code with scope, MaxKey. Comparison is MongoDB's simple
(binary) one: chunk bounds never use a collation.

The first byte of every encoding is its type's rank. Rank ``0x00`` is reserved, because it ends objects, arrays and
strings. So is ``0xFF``, which follows an escaped NUL inside strings. Therefore ``"a"`` followed by any further key part
still comes before ``"a\0"``, and ``encoding + AFTER`` lies behind every key that begins with ``encoding``.
"""

import math
from collections.abc import Callable
from decimal import Decimal
from struct import Struct
from typing import Final, TypeAlias

from bson.decimal128 import Decimal128

from shardwright.wire import rawbson
from shardwright.wire.rawbson import Span

NAN: Final = b"\x28"
NEGATIVE: Final = b"\x29"
POSITIVE_RANK: Final = 0x2A
_POSITIVE: Final = bytes((POSITIVE_RANK,))

_INVERTED: Final = bytes(255 - byte for byte in range(256))

_unpack_int32 = Struct("<i").unpack_from
_unpack_int64 = Struct("<q").unpack_from
_unpack_double = Struct("<d").unpack_from
pack_positive = Struct(">Bdx").pack  # rank, double, and the zero byte that says it is exact
_pack_exact = Struct(">dx").pack
_pack_approximate = Struct(">dBH").pack  # double, the byte that says it is not exact, decimal exponent

NUMBERS_MIN: Final = NEGATIVE + _pack_exact(math.inf).translate(_INVERTED)
"""Encoding of the lowest number, minus infinity; only NaN is below it."""
NUMBERS_END: Final = bytes((POSITIVE_RANK + 1,))
"""Exclusive end of the encodings of all numbers."""

_INEXACT: Final = 1
_DECIMAL_EXPONENT_BIAS: Final = 8192  # decimal exponents reach from -6176 to 6144

EXACT_INTEGERS: Final = 1 << 53
_DOUBLE_MAX: Final = math.ldexp(1.0 - 2.0**-53, 1024)


def encode_int32(document: bytes, start: int, _end: int) -> bytes:
    """Encode the int32 at ``start``."""
    value = _unpack_int32(document, start)[0]
    if value >= 0:
        return pack_positive(POSITIVE_RANK, value)
    return NEGATIVE + _pack_exact(-value).translate(_INVERTED)


def encode_int64(document: bytes, start: int, _end: int) -> bytes:
    """Encode the int64 at ``start``."""
    value = _unpack_int64(document, start)[0]
    if 0 <= value <= EXACT_INTEGERS:
        return pack_positive(POSITIVE_RANK, value)
    if -EXACT_INTEGERS <= value < 0:
        return NEGATIVE + _pack_exact(-value).translate(_INVERTED)
    return _encode_large_integer(value)


def encode_double(document: bytes, start: int, _end: int) -> bytes:
    """Encode the double at ``start``."""
    value = _unpack_double(document, start)[0]
    if value > 0:
        return pack_positive(POSITIVE_RANK, value)
    if value < 0:
        return NEGATIVE + _pack_exact(-value).translate(_INVERTED)
    if value == 0:
        return pack_positive(POSITIVE_RANK, 0.0)
    return NAN


def encode_decimal128(document: bytes, start: int, end: int) -> bytes:
    """Encode the Decimal128 at ``start``."""
    value = Decimal128.from_bid(document[start:end]).to_decimal()
    if value.is_nan():
        return NAN
    if value.is_infinite():
        if value > 0:
            return pack_positive(POSITIVE_RANK, math.inf)
        return NUMBERS_MIN
    return _encode_finite(value)


def _encode_large_integer(value: int) -> bytes:
    """Encode like `_encode_finite`, but faster: hashes are large integers, and hashed keys are frequent."""
    magnitude = abs(value)
    below = float(magnitude)
    exact = int(below)
    if exact == magnitude:
        encoding = _pack_exact(below)
    else:
        if exact > magnitude:
            below = math.nextafter(below, 0.0)
        digits = b"%d" % magnitude
        encoding = _pack_inexact(below, digits, len(digits) - 1)
    return _POSITIVE + encoding if value > 0 else NEGATIVE + encoding.translate(_INVERTED)


def _encode_finite(value: Decimal) -> bytes:
    if value < 0:
        return NEGATIVE + _encode_magnitude(value.copy_negate()).translate(_INVERTED)
    return _POSITIVE + _encode_magnitude(value)


def _encode_magnitude(value: Decimal) -> bytes:
    if not value:  # a zero, or a -0, of any exponent
        return _pack_exact(0.0)
    below = float(value)
    if math.isinf(below):
        below = _DOUBLE_MAX
    if below > value:  # Python compares floats and Decimals exactly
        below = math.nextafter(below, 0.0)
    if below == value:
        return _pack_exact(below)
    return _pack_inexact(below, "".join(map(str, value.as_tuple().digits)).encode(), value.adjusted())


def _pack_inexact(below: float, digits: bytes, exponent: int) -> bytes:
    """Encode the double below a value, and the value itself: its decimal exponent and its zero-terminated digits."""
    return _pack_approximate(below, _INEXACT, exponent + _DECIMAL_EXPONENT_BIAS) + digits.rstrip(b"0") + b"\0"


AFTER: Final = b"\xfe"
"""Suffix of encoded values: greater than every key that begins with them, less than every greater value."""

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

_unpack_uint64 = Struct("<Q").unpack_from
_pack_ranked_uint64 = Struct(">BQ").pack

_INT64_SIGN: Final = 1 << 63


def encode_value(document: bytes, span: Span) -> bytes:
    """Encode one value into order-preserving bytes.

    Raises InvalidBSONError for a malformed object, array or code with scope.
    """
    return _ENCODERS[span[0]](document, span[2], span[3])


def encoder_of(kind: int) -> Encoder:
    """Return the encoder for values of one type; its arguments are a document and the value's start and end in it."""
    return _ENCODERS[kind]


def encode_key(key: bytes, start: int = 0) -> bytes:
    """Encode a compound key: the values of the document ``key``, whatever their names.

    Raises InvalidBSONError if ``key`` is malformed.
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
    """Encode length, then subtype, then bytes."""
    length = end - start - 5
    return _BINARY + length.to_bytes(4, "big") + document[start + 4 : end]


def _encode_regex(document: bytes, start: int, end: int) -> bytes:
    """Encode pattern, then options: both are C strings already."""
    return _REGEX + document[start:end]


def _encode_db_pointer(document: bytes, start: int, end: int) -> bytes:
    """Encode the length of the namespace first, then namespace and ObjectId."""
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
    """Encode elements one by one; a shorter array comes first."""
    return _ARRAY + encode_key(document, start) + b"\0"


def _fields(document: bytes, start: int) -> bytes:
    """Encode fields in their order, each compared by type, then name, then value."""
    parts: list[bytes] = []
    for name, (kind, _, value_start, value_end) in rawbson.spans(document, start):
        parts += (RANKS[kind], name, b"\0", _ENCODERS[kind](document, value_start, value_end))
    parts.append(b"\0")
    return b"".join(parts)


def _invalid(_document: bytes, _start: int, _end: int) -> bytes:
    raise rawbson.InvalidBSONError("no such BSON type")


RANKS: Final = [b"\0"] * 256
"""Rank by type byte, the same for all numbers; it precedes a field's name in an object."""

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
