"""Values that a comparison in a filter allows for one field of the shard key.

Shard key fields never contain arrays, so a field has one value, and comparisons of it can be intersected. All results
may be wider than the comparison, never narrower.
"""

from typing import Final

from shardwright.sharding.hashing import equal_values_hashes
from shardwright.sharding.key_order import (
    AFTER,
    ENCODED_NULL,
    ENCODED_UNDEFINED,
    NAN,
    NUMBERS_END,
    NUMBERS_MIN,
    RANKS,
    encode_int64,
    encode_value,
)
from shardwright.sharding.shard_key import ShardKeyField, descend, refuse_deep_nesting
from shardwright.sharding.targeting.intervals import ALL, Interval, Intervals, point, union
from shardwright.wire import rawbson
from shardwright.wire.rawbson import Span

_COLLATABLE: Final = frozenset({rawbson.STRING, rawbson.SYMBOL, rawbson.OBJECT, rawbson.ARRAY})
"""Types whose order depends on a collation, or that may contain such values."""

_NOT_COMPARED: Final = frozenset({rawbson.REGEX, rawbson.UNDEFINED, rawbson.ARRAY})
"""Operands that do more than compare, that mongod refuses, or that only arrays match."""

_UNBRACKETED: Final = _NOT_COMPARED | {rawbson.MIN_KEY, rawbson.MAX_KEY, rawbson.NULL}
"""Operands whose ``$gt``, ``$lt`` … do not simply stay inside the operand's type."""

# Number of zero bytes after the rank in the lowest value of a type, as `sharding.key_order` encodes it.
_LOWEST_VALUE_BYTES: Final = {
    rawbson.STRING: 1,
    rawbson.SYMBOL: 1,
    rawbson.OBJECT: 1,
    rawbson.BINARY: 5,
    rawbson.OBJECT_ID: 12,
    rawbson.BOOL: 1,
    rawbson.DATE: 8,
    rawbson.TIMESTAMP: 8,
    rawbson.DB_POINTER: 4,
    rawbson.CODE: 1,
    rawbson.CODE_WITH_SCOPE: 2,
}

_NULLISH: Final[Intervals] = (point(ENCODED_UNDEFINED), point(ENCODED_NULL))
_NULL_SPAN: Final = (rawbson.NULL, 0, 0, 0)
_UNDEFINED_SPAN: Final = (rawbson.UNDEFINED, 0, 0, 0)


def is_collatable(kind: int) -> bool:
    """Whether values of a BSON type compare differently under different collations."""
    return kind in _COLLATABLE


def equal_to(field: ShardKeyField, depth: int, document: bytes, span: Span, *, simple_collation: bool) -> Intervals:
    """Return the values of ``field`` in documents where the first ``depth`` parts of its path equal a value.

    An equality on a path above the key's, such as ``{a: {b: 1}}`` for the key ``a.b``, fixes the whole object and with
    it the field. A field that the object lacks is null in the key.
    """
    if span[0] in _NOT_COMPARED:
        return ALL
    if depth < len(field.path):
        below = descend(document, span, field.path[depth:])
        if below is None:
            return missing(field)
        if below[0] == rawbson.ARRAY:
            return ALL
        span = below
    refuse_deep_nesting(document, span)
    if span[0] == rawbson.NULL:
        return missing(field)
    if not simple_collation and span[0] in _COLLATABLE:
        return ALL if field.hashed else (_bracket(span[0]),)
    if field.hashed:
        return _hashes(document, span)
    return (point(encode_value(document, span)),)


def missing(field: ShardKeyField) -> Intervals:
    """Return the values of a field that equals null: null, which also represents a missing one, and undefined."""
    if field.hashed:
        return union([_hashes(b"", _NULL_SPAN), _hashes(b"", _UNDEFINED_SPAN)])
    return _NULLISH


def absent(field: ShardKeyField) -> Intervals:
    """Return the values that a key has for a field that does not exist."""
    return _hashes(b"", _NULL_SPAN) if field.hashed else (point(ENCODED_NULL),)


def compared(
    field: ShardKeyField, operator: bytes, document: bytes, span: Span, *, simple_collation: bool
) -> Intervals:
    """Return the values of a field that are ``$gt``, ``$gte``, ``$lt`` or ``$lte`` an operand.

    They stay in the operand's type, as all comparisons of a filter do.
    """
    kind = span[0]
    if field.hashed or kind in _UNBRACKETED:
        return ALL
    first, end = _bracket(kind)
    if not simple_collation and kind in _COLLATABLE:
        return ((first, end),)
    refuse_deep_nesting(document, span)
    bound = encode_value(document, span)
    if bound == NAN:
        return (point(NAN),)
    low, high = {
        b"$gt": (bound + AFTER, end),
        b"$gte": (bound, end),
        b"$lt": (first, bound),
        b"$lte": (first, bound + AFTER),
    }[operator]
    return ((low, high),) if low < high else ()


def _bracket(kind: int) -> Interval:
    """Return the interval of all values of a type and its equals; of numbers, all but NaN."""
    rank = RANKS[kind]
    if rank == RANKS[rawbson.INT32]:
        return NUMBERS_MIN, NUMBERS_END
    return rank + bytes(_LOWEST_VALUE_BYTES[kind]), bytes((rank[0] + 1,))


def _hashes(document: bytes, span: Span) -> Intervals:
    hashes = equal_values_hashes(document, span)
    if hashes is None:
        return ALL
    return union([(point(encode_int64(each.to_bytes(8, "little", signed=True), 0, 8)),) for each in hashes])
