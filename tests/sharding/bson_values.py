"""Hypothesis strategies for BSON values of every type, as type byte and raw value bytes."""

import math
import struct
from collections.abc import Sequence
from decimal import Decimal
from typing import TypeAlias, TypeVar

from bson.decimal128 import Decimal128, create_decimal128_context
from hypothesis import strategies as st

from shardwright.wire import rawbson
from shardwright.wire.rawbson import Span

Value: TypeAlias = tuple[int, bytes]
Edge = TypeVar("Edge")

NAMES = ("", "a", "b", "ab", "é")

EDGE_INTEGERS = [
    sign * (base + offset)
    for base in (0, 1, 2**24, 2**31, 2**32, 2**53, 2**54, 2**62, 2**63)
    for offset in (-2, -1, 0, 1, 2)
    for sign in (1, -1)
]
EDGE_DOUBLES = [
    *(float(integer) for integer in EDGE_INTEGERS),
    *(0.0, -0.0, 0.1, -0.1, 0.5, 1.5, 2.5, -1.5, 1e-300, 5e-324, -5e-324, 1.7976931348623157e308, 2.0**64, 1e30),
    *(math.inf, -math.inf, math.nan),
]
EDGE_DECIMALS = [
    *(str(integer) for integer in EDGE_INTEGERS),
    *("0", "-0", "0E+10", "-0E-6176", "0.1", "0.10", "-0.1", "1.5", "2.50", "-1.5", "3.5", "9223372036854775807.5"),
    *("1E-6176", "-1E-6176", "9.999999999999999999999999999999999E+6144", "-1E+6144", "1.8E+308", "4E-324"),
    *("0.1000000000000000055511151231257827", "0.1000000000000000055511151231257828", "1E+30", "1.7E308"),
    *("Infinity", "-Infinity", "NaN", "-NaN", "sNaN"),
]


def int32(value: int) -> Value:
    """An int32."""
    return rawbson.INT32, struct.pack("<i", value)


def int64(value: int) -> Value:
    """An int64."""
    return rawbson.INT64, struct.pack("<q", value)


def double(value: float) -> Value:
    """A double."""
    return rawbson.DOUBLE, struct.pack("<d", value)


def decimal128(value: str | Decimal) -> Value:
    """A Decimal128."""
    return rawbson.DECIMAL128, Decimal128(value).bid


def string(text: str, kind: int = rawbson.STRING) -> Value:
    """A string, or another type with the same layout."""
    data = text.encode()
    return kind, struct.pack("<i", len(data) + 1) + data + b"\0"


def document_of(fields: list[tuple[str, Value]]) -> bytes:
    """A document with the given fields."""
    return rawbson.from_elements(
        b"".join(rawbson.element(name.encode(), kind, value) for name, (kind, value) in fields)
    )


def array_of(values: list[Value]) -> Value:
    """An array."""
    return rawbson.ARRAY, document_of([(str(position), value) for position, value in enumerate(values)])


def wrapped(value: Value, name: bytes = b"v") -> tuple[bytes, Span]:
    """A document with only this value, and the value's span."""
    document = rawbson.wrap_value(*value, name)
    return document, rawbson.index(document)[name]


def _edges(pool: Sequence[Edge]) -> st.SearchStrategy[Edge]:
    """One of a pool; unlike ``sampled_from`` without the whole pool in each failure message."""

    def edge(position: int) -> Edge:
        return pool[position]

    return st.integers(0, len(pool) - 1).map(edge)


def _integers_of(bits: int) -> st.SearchStrategy[int]:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    edges = [integer for integer in EDGE_INTEGERS if low <= integer <= high]
    return _edges(edges) | st.integers(low, high) | st.integers(-3, 3)


def _code_with_scope(text: str, scope: list[tuple[str, Value]]) -> Value:
    body = string(text)[1] + document_of(scope)
    return rawbson.CODE_WITH_SCOPE, struct.pack("<i", len(body) + 4) + body


def _binary(data: bytes, subtype: int) -> Value:
    return rawbson.BINARY, struct.pack("<iB", len(data), subtype) + data


_texts = st.text(st.sampled_from("\0\x01ab\uffffé"), max_size=4)
_c_strings = st.text(st.sampled_from("\x01abé"), max_size=3).map(lambda text: text.encode() + b"\0")

_DECIMAL_CONTEXT = create_decimal128_context()

numbers: st.SearchStrategy[Value] = st.one_of(
    _integers_of(32).map(int32),
    _integers_of(64).map(int64),
    (_edges(EDGE_DOUBLES) | st.floats()).map(double),
    _edges(EDGE_DECIMALS).map(decimal128),
    st.integers(-(10**34) + 1, 10**34 - 1).map(str).map(decimal128),
    st.floats(allow_nan=False, allow_infinity=False)
    .map(lambda value: _DECIMAL_CONTEXT.create_decimal(Decimal(value)))
    .map(decimal128),
)

scalars: st.SearchStrategy[Value] = st.one_of(
    st.sampled_from(
        [
            (rawbson.MIN_KEY, b""),
            (rawbson.UNDEFINED, b""),
            (rawbson.NULL, b""),
            (rawbson.BOOL, b"\0"),
            (rawbson.BOOL, b"\1"),
            (rawbson.MAX_KEY, b""),
        ]
    ),
    numbers,
    _texts.map(string),
    _texts.map(lambda text: string(text, rawbson.SYMBOL)),
    _texts.map(lambda text: string(text, rawbson.CODE)),
    st.builds(_binary, st.binary(max_size=3), st.sampled_from([0, 1, 5, 128])),
    st.binary(min_size=12, max_size=12).map(lambda data: (rawbson.OBJECT_ID, data)),
    _integers_of(64).map(lambda value: (rawbson.DATE, struct.pack("<q", value))),
    st.integers(1, 2**64 - 1).map(lambda value: (rawbson.TIMESTAMP, struct.pack("<Q", value))),
    st.builds(
        lambda pattern, options: (rawbson.REGEX, pattern + options), _c_strings, st.sampled_from([b"\0", b"i\0"])
    ),
    st.builds(
        lambda text, oid: (rawbson.DB_POINTER, string(text)[1] + oid),
        st.sampled_from(["", "a", "b", "a.b"]),
        st.binary(min_size=12, max_size=12),
    ),
)


def _nested(inner: st.SearchStrategy[Value]) -> st.SearchStrategy[Value]:
    fields = st.lists(st.tuples(st.sampled_from(NAMES), inner), max_size=3, unique_by=lambda field: field[0])
    return st.one_of(
        fields.map(lambda each: (rawbson.OBJECT, document_of(each))),
        st.lists(inner, max_size=3).map(array_of),
        st.builds(_code_with_scope, _texts, fields),
    )


values: st.SearchStrategy[Value] = st.recursive(scalars, _nested, max_leaves=6)
