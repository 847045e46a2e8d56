"""Sets of values that a filter allows: intervals of one field of the shard key, and boxes of all its fields.

Shard key fields never contain arrays, so a field has one value, and comparisons of it can be intersected. All results
may be wider than the comparison, never narrower.

The values of one field are sorted disjoint intervals of their order-preserving bytes. An interval ``(low, high)`` is
half-open: all values, and all compound keys, whose bytes are in ``[low, high)``. No value's encoding is followed by
``AFTER`` inside another's. So one value is ``(encoding, encoding + AFTER)``, and every kind of bound of a query fits
the half-open form.

A *box* has one set of values per field of the key; a key is in it when each of its parts is in its set. Limits widen
the result, so that a huge filter costs a broadcast rather than the router's memory.

**Collations** (`is_simple`, `effective`). Chunk bounds are in simple (binary) order. So a key with a possible string
does not determine the place of a match, unless the effective collation of the operation is the simple one.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from shardwright.sharding.hashing import equal_values_hashes
from shardwright.sharding.key_order import (
    AFTER,
    ENCODED_MAX_KEY,
    ENCODED_MIN_KEY,
    ENCODED_NULL,
    ENCODED_UNDEFINED,
    NAN,
    NUMBERS_END,
    NUMBERS_MIN,
    RANKS,
    encode_int64,
    encode_value,
)
from shardwright.sharding.shard_key import ShardKeyField, ShardKeyPattern, descend, refuse_deep_nesting
from shardwright.wire import rawbson
from shardwright.wire.rawbson import Span

Interval: TypeAlias = tuple[bytes, bytes]
Intervals: TypeAlias = tuple[Interval, ...]

ALL: Final[Intervals] = ((ENCODED_MIN_KEY, ENCODED_MAX_KEY + AFTER),)

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
    rawbson.REGEX: 2,
    rawbson.DB_POINTER: 4,
    rawbson.CODE: 1,
    rawbson.CODE_WITH_SCOPE: 2,
}

_TYPES: Final = frozenset(kind for kind, rank in enumerate(RANKS) if rank != b"\0") - {rawbson.ARRAY}
_TYPES_BY_NAME: Final = {b"number": rawbson.DOUBLE, **{rawbson.type_name(kind).encode(): kind for kind in _TYPES}}

_UNESCAPED_PIPE: Final = re.compile(rb"(?<!\\)\||\\\\\|")
_BEFORE_OPTIONAL: Final = (b"*", b"?", b"{", b"(?#", b"\\E")
"""Quantifiers that may make the character before them optional, and text that a quantifier may follow."""
_METACHARACTERS: Final = b"^$.[()+"

_NULL_SPAN: Final = (rawbson.NULL, 0, 0, 0)
_UNDEFINED_SPAN: Final = (rawbson.UNDEFINED, 0, 0, 0)

ICU_DEFAULTS: Final[Mapping[str, Any]] = {
    "caseLevel": False,
    "caseFirst": "off",
    "strength": 3,
    "numericOrdering": False,
    "alternate": "non-ignorable",
    "maxVariable": "punct",
    "normalization": False,
    "backwards": False,
}
"""Defaults of mongod for fields that a collation with a locale omits."""

Box: TypeAlias = tuple[Intervals, ...]
Boxes: TypeAlias = tuple[Box, ...]
BOXES_MAX: Final = 256
"""Most boxes of an intersection; beyond it, one of its sides is dropped."""
KEY_RANGES_MAX: Final = 100_000
"""Most ranges that multiplying the points of a box's first fields may give; mongos fails at four million instead."""
NO_BOXES: Final[Boxes] = ()


def point(encoding: bytes) -> Interval:
    """Return the interval of the one value with this encoding."""
    return encoding, encoding + AFTER


def is_point(interval: Interval) -> bool:
    """Whether an interval is one value."""
    low, high = interval
    return len(high) == len(low) + 1 and high == low + AFTER


def union(sets: Iterable[Intervals]) -> Intervals:
    """Return the values in any of the sets."""
    merged: list[Interval] = []
    for low, high in sorted(interval for intervals in sets for interval in intervals):
        if merged and low < merged[-1][1]:
            if high > merged[-1][1]:
                merged[-1] = (merged[-1][0], high)
        else:
            merged.append((low, high))
    return tuple(merged)


def intersection(left: Intervals, right: Intervals) -> Intervals:
    """Return the values in both sets."""
    if left == ALL:
        return right
    if right == ALL:
        return left
    common: list[Interval] = []
    at_left = at_right = 0
    while at_left < len(left) and at_right < len(right):
        low = max(left[at_left][0], right[at_right][0])
        high = min(left[at_left][1], right[at_right][1])
        if low < high:
            common.append((low, high))
        if left[at_left][1] < right[at_right][1]:
            at_left += 1
        else:
            at_right += 1
    return tuple(common)


_NULLISH: Final[Intervals] = (point(ENCODED_UNDEFINED), point(ENCODED_NULL))


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
        return ALL  # as in mongos, although the type would limit the values of a ranged field
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
    if field.hashed or kind in _UNBRACKETED or (not simple_collation and kind in _COLLATABLE):
        return ALL
    first, end = _bracket(kind)
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


def compared_by_expression(
    field: ShardKeyField, operator: bytes, document: bytes, span: Span, *, simple_collation: bool
) -> Intervals:
    """Return the values of a field that satisfy a comparison of ``$expr`` with a constant.

    It is not limited to the constant's type. A missing field, whose key is null, is less than null.
    """
    kind = span[0]
    if field.hashed or (not simple_collation and kind in _COLLATABLE):
        return ALL
    refuse_deep_nesting(document, span)
    bound = encode_value(document, span)
    low, high = {
        b"$gt": (bound + AFTER, ENCODED_MAX_KEY + AFTER),
        b"$gte": (bound, ENCODED_MAX_KEY + AFTER),
        b"$lt": (ENCODED_MIN_KEY, bound + AFTER if kind == rawbson.NULL else bound),
        b"$lte": (ENCODED_MIN_KEY, bound + AFTER),
    }[operator]
    return ((low, high),) if low < high else ()


def matching(field: ShardKeyField, pattern: bytes, options: bytes) -> Intervals:
    """Return the values of a field that a regular expression can match: strings, and the same expression as a value.

    An anchored expression limits the strings to those with its literal prefix, whatever the collation.
    """
    if field.hashed:
        return ALL
    prefix = _literal_prefix(pattern, options).rstrip(b"\xff")
    rank = RANKS[rawbson.STRING]
    strings = _bracket(rawbson.STRING)
    if prefix:
        strings = rank + prefix + b"\0", rank + prefix[:-1] + bytes((prefix[-1] + 1,))
    return strings, point(RANKS[rawbson.REGEX] + pattern + b"\0" + options + b"\0")


def of_types(field: ShardKeyField, document: bytes, span: Span) -> Intervals:
    """Return the values of a field that have a type of ``$type``: a name, a number, or an array of these."""
    if field.hashed:
        return ALL
    listed = [below for _, below in rawbson.spans(document, span[2])] if span[0] == rawbson.ARRAY else [span]
    found = []
    for each in listed:
        kind = _named_type(document, each)
        if kind is None:
            return ALL
        found.append((_values_of_type(kind),))
    return union(found)


def _named_type(document: bytes, span: Span) -> int | None:
    """Return the BSON type that an operand of ``$type`` means; None if it is none, or if it is an array."""
    if span[0] == rawbson.STRING:
        return _TYPES_BY_NAME.get(document[span[2] + 4 : span[3] - 1])
    number = rawbson.decode_value(document, span) if span[0] in (rawbson.INT32, rawbson.INT64, rawbson.DOUBLE) else None
    kind = rawbson.MIN_KEY if number == -1 else number
    return int(kind) if kind in _TYPES else None


def _values_of_type(kind: int) -> Interval:
    """Return the interval of all values that sort like values of a type."""
    if RANKS[kind] == RANKS[rawbson.INT32]:
        return numbers()
    return _bracket(kind) if kind in _LOWEST_VALUE_BYTES else point(RANKS[kind])


def numbers() -> Interval:
    """Return the interval of all numbers, NaN included."""
    return NAN, NUMBERS_END


def _literal_prefix(pattern: bytes, options: bytes) -> bytes:
    """Return the characters that every matched string begins with, as far as mongos derives them."""
    is_multiline_safe = pattern.startswith(b"\\A")
    if not (is_multiline_safe or pattern.startswith(b"^")) or _UNESCAPED_PIPE.search(pattern):
        return b""
    if options.translate(None, b"msx" if is_multiline_safe else b"sx"):
        return b""
    if b"\\c" in pattern:  # a control character may be written with a backslash, and so hide an alternation
        return b""
    is_extended = b"x" in options
    prefix = bytearray()
    position = 2 if is_multiline_safe else 1
    while position < len(pattern):
        character = pattern[position : position + 1]
        position += 1
        if pattern.startswith(_BEFORE_OPTIONAL, position - 1) or (is_extended and character == b"#"):
            while prefix and 0x80 <= prefix.pop() < 0xC0:  # the bytes of one character
                continue
            break
        if character == b"\\":
            escaped = pattern[position : position + 1]
            if escaped == b"Q":
                end = pattern.find(b"\\E", position)
                end = len(pattern) if end < 0 else end
                prefix += pattern[position + 1 : end]
                position = end + 2
                continue
            if not escaped or escaped.isalnum():
                break
            prefix += escaped
            position += 1
        elif character in _METACHARACTERS:
            break
        elif not (is_extended and character.isspace()):
            prefix += character
    return bytes(prefix)


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


def is_simple(collation: Mapping[str, Any] | None) -> bool:
    """Whether a collation, or the lack of one, compares strings as bytes."""
    return not collation or collation.get("locale") == "simple"


def effective(
    operation: Mapping[str, Any] | None, collection_default: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    """Return the collation of an operation: its own if it names one, ``simple`` included, or else the collection's."""
    return operation or collection_default


def is_collection_default(operation: Mapping[str, Any] | None, collection_default: Mapping[str, Any] | None) -> bool:
    """Whether an operation collates like the collection, so that the ``_id`` index and its uniqueness apply."""
    return not operation or _spelled_out(operation) == _spelled_out(collection_default)


def uncollated_field(pattern: ShardKeyPattern, key: bytes) -> str | None:
    """Return the first field of a shard key document that is unusable under a non-simple collation, if there is one.

    A hashed field never can be: its value may be the hash of a string.
    """
    for each, (name, span) in zip(pattern.fields, rawbson.spans(key), strict=True):
        if each.hashed or is_collatable(span[0]):
            return name.decode(errors="replace")
    return None


def _spelled_out(collation: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Fill in the defaults that a command omits and a catalog entry has; drop the ICU's version."""
    if is_simple(collation):
        return {"locale": "simple"}
    return {**ICU_DEFAULTS, **{key: value for key, value in (collation or {}).items() if key != "version"}}


def unlimited(fields: int) -> Boxes:
    """Return the whole key space of a key with that many fields."""
    return ((ALL,) * fields,)


def limited(fields: int, field: int, values: Intervals) -> Boxes:
    """Limit one field to some values."""
    if not values:
        return NO_BOXES
    return ((ALL,) * field + (values,) + (ALL,) * (fields - field - 1),)


def intersect(left: Boxes, right: Boxes) -> Boxes:
    """Return the keys in both, or, where that would be too many boxes, the keys in one of them."""
    if len(left) * len(right) > BOXES_MAX:
        return min(left, right, key=len)
    boxes = []
    for one in left:
        for other in right:
            box = tuple(map(intersection, one, other))
            if all(box):
                boxes.append(box)
    return tuple(boxes)


def unite(alternatives: list[Boxes]) -> Boxes:
    """Return the keys in any of them. Boxes that differ in only one field become one."""
    boxes = [box for alternative in alternatives for box in alternative]
    if len(boxes) < 2:
        return tuple(boxes)
    for field in range(len(boxes[0])):
        grouped: dict[Box, list[Intervals]] = {}
        for box in boxes:
            grouped.setdefault(box[:field] + box[field + 1 :], []).append(box[field])
        boxes = [(*rest[:field], union(sets), *rest[field:]) for rest, sets in grouped.items()]
    return tuple(boxes)


def compound_ranges(box: Box) -> list[Interval]:
    """Return the ranges of key bytes that cover a box.

    Fields limited to points are multiplied with one another. The first field that is not ends the precise part, because
    after a range the further fields no longer form a range. They count as MinKey at the low end: a range from ``{a:
    5}`` begins at ``{a: 5, b: MinKey}``, where chunks tend to begin, and not below.
    """
    prefixes = [b""]
    fields_left = len(box)
    for values in box:
        if values == ALL or len(prefixes) * len(values) > KEY_RANGES_MAX:
            break
        fields_left -= 1
        if not all(map(is_point, values)):
            rest = ENCODED_MIN_KEY * fields_left
            return [(prefix + low + rest, prefix + high) for prefix in prefixes for low, high in values]
        prefixes = [prefix + low for prefix in prefixes for low, _ in values]
    if prefixes == [b""]:
        return list(ALL)
    rest = ENCODED_MIN_KEY * fields_left
    return [(prefix + rest, prefix + AFTER) for prefix in prefixes]
