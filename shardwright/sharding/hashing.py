"""Value of a hashed shard key field: MongoDB's 64-bit hash of a BSON value.

It is the first eight bytes, as a little-endian signed integer, of an MD5. The input is the seed 0 as int32, the value's
canonical type as int32, and the value. All numeric types have one canonical type, strings and symbols another. A number
is hashed as an int64: doubles are truncated, Decimal128s rounded half to even. So numbers that differ only after the
decimal point collide, but not a ``1.9`` with a Decimal128 ``1.9``. Objects, arrays and code with scope feed the hash
recursively with canonical type, field name and value of each element, and end with the type of their end marker.

All of it as observed with ``$toHashedIndexKey`` on mongod 6.0.5.
"""

import math
from decimal import ROUND_HALF_EVEN, Decimal
from hashlib import md5
from struct import Struct
from typing import Final

from bson.decimal128 import Decimal128

from shardwright.wire import rawbson
from shardwright.wire.rawbson import Span

_unpack_int32 = Struct("<i").unpack_from
_unpack_int64 = Struct("<q").unpack_from
_unpack_double = Struct("<d").unpack_from
_pack_int64 = Struct("<q").pack

_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1

_SEED: Final = b"\0\0\0\0"

_CANONICAL_NUMBER: Final = (10).to_bytes(4, "little")
_END: Final = b"\0\0\0\0"  # the end marker's canonical type; it has neither name nor value

_FRACTIONAL: Final = frozenset({rawbson.DOUBLE, rawbson.DECIMAL128})
_NESTING: Final = frozenset({rawbson.OBJECT, rawbson.ARRAY, rawbson.CODE_WITH_SCOPE})

_CANONICAL_TYPES: Final = {
    kind: number.to_bytes(4, "little", signed=True)
    for kind, number in {
        rawbson.MIN_KEY: -1,
        rawbson.UNDEFINED: 0,
        rawbson.NULL: 5,
        rawbson.INT32: 10,
        rawbson.INT64: 10,
        rawbson.DOUBLE: 10,
        rawbson.DECIMAL128: 10,
        rawbson.STRING: 15,
        rawbson.SYMBOL: 15,
        rawbson.OBJECT: 20,
        rawbson.ARRAY: 25,
        rawbson.BINARY: 30,
        rawbson.OBJECT_ID: 35,
        rawbson.BOOL: 40,
        rawbson.DATE: 45,
        rawbson.TIMESTAMP: 47,
        rawbson.REGEX: 50,
        rawbson.DB_POINTER: 55,
        rawbson.CODE: 60,
        rawbson.CODE_WITH_SCOPE: 65,
        rawbson.MAX_KEY: 127,
    }.items()
}


def hash_value(document: bytes, span: Span, seed: int = 0) -> int:
    """Compute the hash of one value, an int64; ``seed`` is an int32, 0 for hashed shard keys and indexes.

    Raises InvalidBSONError for a malformed object, array or code with scope.
    """
    parts = [seed.to_bytes(4, "little", signed=True) if seed else _SEED, _CANONICAL_TYPES[span[0]]]
    _feed(parts, document, span)
    digest = md5(b"".join(parts), usedforsecurity=False).digest()
    return int(_unpack_int64(digest)[0])


def equal_values_hashes(document: bytes, span: Span) -> tuple[int, ...] | None:
    """Return the hashes of all values equal to this one; None if there are too many to list.

    Equal numbers of different types do not always have the same hash: a double 1.5 hashes as 1, a Decimal128 1.5 as 2,
    and 2^63 as either end of the range. So a search for a number may have to look in two places.
    """
    if span[0] in _NESTING:
        return (hash_value(document, span),) if _hashes_as_its_equals(document, span) else None
    if span[0] in _FRACTIONAL:
        return tuple(
            hash_value(_pack_int64(number), (rawbson.INT64, 0, 0, 8)) for number in _equal_int64s(document, span)
        )
    return (hash_value(document, span),)


def _hashes_as_its_equals(document: bytes, span: Span) -> bool:
    """Whether all values equal to this one have its hash."""
    if span[0] in _FRACTIONAL:
        return len(_equal_int64s(document, span)) == 1
    if span[0] not in _NESTING:
        return True
    start = span[2]
    if span[0] == rawbson.CODE_WITH_SCOPE:
        start += 8 + int(_unpack_int32(document, start + 4)[0])
    return all(_hashes_as_its_equals(document, below) for _, below in rawbson.spans(document, start))


def _equal_int64s(document: bytes, span: Span) -> set[int]:
    """Return the int64s as which a double or Decimal128 is hashed, as a value of either type."""
    if span[0] == rawbson.DOUBLE:
        double = _unpack_double(document, span[2])[0]
        decimal = Decimal(double)
    else:
        decimal = Decimal128.from_bid(document[span[2] : span[3]]).to_decimal()
        double = math.nan if decimal.is_nan() else float(decimal)
    return {_double_as_int64(double), _decimal_as_int64(decimal)}


def _feed(parts: list[bytes], document: bytes, span: Span) -> None:
    """Append the hash input of a value, after its canonical type and name."""
    kind, _, start, end = span
    if _CANONICAL_TYPES[kind] == _CANONICAL_NUMBER:
        parts.append(_pack_int64(_as_int64(document, span)))
    elif kind in (rawbson.OBJECT, rawbson.ARRAY):
        _feed_elements(parts, document, start)
    elif kind == rawbson.CODE_WITH_SCOPE:
        code_end = start + 8 + int(_unpack_int32(document, start + 4)[0])
        if not start + 8 < code_end <= end - rawbson.DOCUMENT_BYTES_MIN:
            raise rawbson.InvalidBSONError("code with scope whose code reaches past its end")
        parts.append(document[start + 8 : code_end])
        _feed_elements(parts, document, code_end)
    else:
        parts.append(document[start:end])


def _feed_elements(parts: list[bytes], document: bytes, start: int) -> None:
    for name, span in rawbson.spans(document, start):
        parts += (_CANONICAL_TYPES[span[0]], name, b"\0")
        _feed(parts, document, span)
    parts.append(_END)


def _as_int64(document: bytes, span: Span) -> int:
    """Convert a number as MongoDB hashes it: NaN to 0, numbers outside int64 to the nearest end of the range."""
    kind, _, start, end = span
    if kind == rawbson.INT32:
        return int(_unpack_int32(document, start)[0])
    if kind == rawbson.INT64:
        return int(_unpack_int64(document, start)[0])
    if kind == rawbson.DOUBLE:
        return _double_as_int64(_unpack_double(document, start)[0])
    return _decimal_as_int64(Decimal128.from_bid(document[start:end]).to_decimal())


def _double_as_int64(value: float) -> int:
    if math.isnan(value):
        return 0
    if value == 2.0**63:  # the result of the processor's conversion, preserved for stored hashes
        return _INT64_MIN
    if math.isinf(value):
        return _INT64_MAX if value > 0 else _INT64_MIN
    return max(_INT64_MIN, min(int(value), _INT64_MAX))


def _decimal_as_int64(value: Decimal) -> int:
    if value.is_nan():
        return 0
    if value.is_infinite() or value.adjusted() > 18:
        return _INT64_MAX if value > 0 else _INT64_MIN
    return max(_INT64_MIN, min(int(value.to_integral_value(ROUND_HALF_EVEN)), _INT64_MAX))
