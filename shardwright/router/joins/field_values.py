"""The values that an equality of a ``$lookup`` compares, found in raw documents.

Too many may be found, never too few: a mongod makes the exact comparison later.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from shardwright.sharding.key_order import ENCODED_NULL, encode_value
from shardwright.wire.rawbson import (
    ARRAY,
    BINARY,
    BOOL,
    DATE,
    DECIMAL128,
    DOUBLE,
    INT32,
    INT64,
    NULL,
    OBJECT,
    OBJECT_ID,
    REGEX,
    STRING,
    SYMBOL,
    TIMESTAMP,
    UNDEFINED,
    Span,
    array_of_documents,
    element,
    find,
    from_elements,
    spans,
)

_COLLATED: Final = frozenset({STRING, SYMBOL, OBJECT, ARRAY})
"""Types whose values a collation may hold equal although their bytes differ."""

_PLAIN: Final = frozenset({DOUBLE, INT32, INT64, DECIMAL128, STRING, OBJECT_ID, BOOL, DATE, TIMESTAMP, BINARY})
"""Types whose values equal just those of the same key, and no others."""

_ANY_COLLATED: Final = b"collated"
_MISSING: Final = frozenset({NULL, UNDEFINED})


def values_at(document: bytes, path: Sequence[bytes], start: int = 0) -> Iterator[Span | None]:
    """The values at a path, through arrays, and the elements of arrays; None where there is none.

    Args:
        document: the document.
        path: the names, at least one. A number may be a field, or an index into an array.
        start: where in ``document`` the object or array begins that the path starts at.
    """
    span = find(document, path[0], start)
    if span is None:
        yield None
    elif len(path) == 1:
        yield span
        if span[0] == ARRAY:
            yield from _elements(document, span)
    elif span[0] == OBJECT:
        yield from values_at(document, path[1:], span[2])
    elif span[0] == ARRAY:
        yield from _values_in_array(document, span, path[1:])
    else:
        yield None


def _elements(document: bytes, array: Span) -> Iterator[Span | None]:
    is_empty = True
    for _, span in spans(document, array[2]):
        is_empty = False
        yield span
    if is_empty:
        yield None


def _values_in_array(document: bytes, array: Span, path: Sequence[bytes]) -> Iterator[Span | None]:
    if path[0].isdigit():
        yield from values_at(document, path, array[2])
    is_empty = True
    for _, span in spans(document, array[2]):
        is_empty = False
        if span[0] == OBJECT:
            yield from values_at(document, path, span[2])
        elif span[0] == ARRAY:
            yield from _values_in_array(document, span, path)
        else:
            yield None
    if is_empty:
        yield None


def comparison_key(document: bytes, span: Span | None, *, is_collated: bool) -> bytes:
    """Bytes that are the same for values that are equal; for some that are not, too.

    Args:
        document: where the value is.
        span: the value, None for a missing one.
        is_collated: a collation applies that is not the simple one.
    """
    if span is None or span[0] in _MISSING:
        return ENCODED_NULL
    if is_collated and span[0] in _COLLATED:
        return _ANY_COLLATED
    return encode_value(document, span)


def has_plain_value(document: bytes, path: Sequence[bytes]) -> bool:
    """Whether a top-level field has a single value that equals those of the same `comparison_key`, and no others."""
    span = find(document, path[0]) if len(path) == 1 else None
    return span is not None and span[0] in _PLAIN


class WantedValues:
    """The different values of a field in a batch of documents, to look for in another collection."""

    def __init__(self, path: Sequence[bytes]) -> None:
        """Begin without values.

        Args:
            path: the names of the field's path.
        """
        self._path = path
        self._values: dict[bytes, tuple[int, bytes]] = {}

    def add(self, document: bytes) -> set[bytes]:
        """Add the values of one document; returns their keys, without a collation."""
        keys = set()
        for span in values_at(document, self._path):
            key = comparison_key(document, span, is_collated=False)
            keys.add(key)
            if span is not None and span[0] == STRING:
                key += b"s"  # a symbol of the same text is another value to look for
            if key not in self._values:
                is_missing = span is None or span[0] in _MISSING
                self._values[key] = (NULL, b"") if is_missing else _value(document, span)
        return keys

    def filter(self, field: bytes) -> bytes:
        """A raw filter for the documents that have one of the values in a field."""
        plain = [value for value in self._values.values() if value[0] != REGEX]
        alternatives = [_condition(field, b"$in", ARRAY, _array(plain))]
        # In $in, a regular expression would match strings.
        alternatives += [_condition(field, b"$eq", *value) for value in self._values.values() if value[0] == REGEX]
        if len(alternatives) == 1:
            return alternatives[0]
        return from_elements(element(b"$or", ARRAY, array_of_documents(alternatives)))


def _value(document: bytes, span: Span | None) -> tuple[int, bytes]:
    assert span is not None
    return span[0], document[span[2] : span[3]]


def _condition(field: bytes, operator: bytes, kind: int, value: bytes) -> bytes:
    return from_elements(element(field, OBJECT, from_elements(element(operator, kind, value))))


def _array(values: Sequence[tuple[int, bytes]]) -> bytes:
    parts = [element(b"%d" % position, kind, value) for position, (kind, value) in enumerate(values)]
    return from_elements(b"".join(parts))
