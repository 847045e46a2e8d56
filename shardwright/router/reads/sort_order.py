"""The order in which the results of several shards are merged.

On request, a shard adds a ``$sortKey`` to each document: an array of the values of the sort's components. The values
are already evaluated (``$meta``) and transformed by the collation. The router therefore compares them as plain values,
component by component, each in its direction.

To add a ``$sortKey``, a shard builds each document twice, which is a third to a half of a sorted find's cost to mongod.
A sort by top-level fields under the simple collation does not need it. By MongoDB's rules, the value of such a field is

* the field's, or null if the document has none;
* for an array, the element that comes first in the direction of the sort, or undefined if the array is empty. With
  several components only one can be an array (mongod refuses to sort parallel ones), so components are independent.

Paths with dots expand arrays along the path by other rules, so they are left to the shards. So are ``$meta`` and all
options that return something else than the field as it is stored (see `FindArguments.parse`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from struct import error as struct_error
from typing import Final

from shardwright.sharding.key_order import ENCODED_NULL, ENCODED_UNDEFINED, encode_value
from shardwright.sharding.routing_table_build import KEY_COLUMNS, KeyColumn
from shardwright.wire.errors import RemoteProtocolError
from shardwright.wire.rawbson import (
    ARRAY,
    DATE,
    DECIMAL128,
    DOUBLE,
    INT32,
    INT64,
    OBJECT_ID,
    TIMESTAMP,
    Span,
    decode_value,
    find,
    spans,
)

SORT_KEY: Final = b"$sortKey"

INVERTED: Final = bytes(255 - byte for byte in range(256))
"""Translation table from an encoding to one in the opposite order."""

NUMBERS: Final = frozenset({INT32, INT64, DOUBLE, DECIMAL128})

END: Final = b"\x80"
"""The end of a key. If one encoding is a prefix of another ("a" and "a\\0"), the next byte decides. This byte lies
between the longer encoding's escape byte and the inverse of that byte."""

# Types whose values all have the same size. An array with the size of one such value has exactly one element.
_FIXED_SIZES: Final = {INT32: 4, INT64: 8, DOUBLE: 8, DATE: 8, TIMESTAMP: 8, OBJECT_ID: 12}
_ARRAY_OF_ONE_BYTES: Final = 8
"""The array's length, the value's type, its name ``0`` with a NUL, and the array's end."""

# $sortKey and its NUL, as it appears in a document.
_SORT_KEY_NAME: Final = SORT_KEY + b"\0"

# The type and name of the metadata element that shards add before it, and its size with the double that follows.
_TEXT_SCORE: Final = bytes((DOUBLE,)) + b"$textScore\0"
_TEXT_SCORE_BYTES: Final = len(_TEXT_SCORE) + 8


@dataclass(frozen=True, slots=True)
class SortOrder:
    """The order of documents that carry a ``$sortKey``.

    Attributes:
        descending: for each component of the sort, whether it descends.
        is_whole_key: whether ``$sortKey`` is a single ascending value rather than an array of components (``$near``).
    """

    descending: tuple[bool, ...]
    is_whole_key: bool = False

    @classmethod
    def parse(cls, sort: bytes) -> "SortOrder | None":
        """Parse a ``sort`` document; return None if results may come in any order.

        A ``$natural`` anywhere is a hint rather than a sort, and ``$meta`` components descend. Malformed sorts are
        left for the shards to refuse.
        """
        descending: list[bool] = []
        for name, span in spans(sort):
            if name == b"$natural":
                return None
            descending.append(span[0] not in NUMBERS or decode_value_is_negative(sort, span))
        return cls(tuple(descending)) if descending else None

    def keyed(self, documents: Sequence[bytes]) -> tuple[list[bytes], Sequence[bytes]]:
        """Return the keys of documents that carry their ``$sortKey``, and the documents without it (see `merge.Order`).

        Raises:
            RemoteProtocolError: a document lacks it, or it has other components than the sort.
        """
        spans_of_keys = [sort_key_span(document) for document in documents]
        keys = list(map(self.key, documents, spans_of_keys))
        return keys, list(map(without_sort_key, documents, spans_of_keys))

    def key(self, document: bytes, span: Span) -> bytes:
        """Return bytes that compare as the document does, from the ``$sortKey`` at ``span``.

        Raises:
            RemoteProtocolError: the ``$sortKey`` does not have the components of the sort.
        """
        if self.is_whole_key:
            return encode_value(document, span)
        kind, _, start, end = span
        if kind != ARRAY:
            raise RemoteProtocolError("a $sortKey that is not an array")
        size = _FIXED_SIZES.get(document[start + 4])
        if size is not None and len(self.descending) == 1 and end == start + size + _ARRAY_OF_ONE_BYTES:
            encoding = encode_value(document, (document[start + 4], start + 4, start + 7, end - 1))
            return (encoding.translate(INVERTED) if self.descending[0] else encoding) + END
        parts = [encode_value(document, each) for _, each in spans(document, span[2])]
        if len(parts) != len(self.descending):
            raise RemoteProtocolError(f"a $sortKey of {len(parts)} components for a sort of {len(self.descending)}")
        for position, descends in enumerate(self.descending):
            if descends:
                parts[position] = parts[position].translate(INVERTED)
        parts.append(END)
        return b"".join(parts)


NEAREST_FIRST: Final = SortOrder((False,), is_whole_key=True)
"""The order of a ``$near`` query without a sort, whose ``$sortKey`` is the distance."""


def decode_value_is_negative(document: bytes, span: Span) -> bool:
    """Whether the number at ``span`` is below zero. NaN is not."""
    value = decode_value(document, span)
    number = value.to_decimal() if span[0] == DECIMAL128 else value
    return bool(number == number and number < 0)  # a decimal NaN does not compare


def sort_key_span(document: bytes) -> Span:
    """Locate the ``$sortKey`` of a document.

    Every document that a shard sends for a merge has one at its top level. If the name occurs only once in its bytes,
    that is the ``$sortKey``, and the elements before it need not be walked.

    Raises:
        RemoteProtocolError: there is none.
    """
    at = document.find(_SORT_KEY_NAME, 5)
    if at < 0:
        raise RemoteProtocolError("a document without the $sortKey that was asked for")
    value_start = at + len(_SORT_KEY_NAME)
    if document.find(_SORT_KEY_NAME, value_start) < 0 and document[at - 1] == ARRAY:
        length = int.from_bytes(document[value_start : value_start + 4], "little")
        return ARRAY, at - 1, value_start, value_start + length
    found: Span | None = None
    for name, span in spans(document):
        if name == SORT_KEY:
            found = span
    if found is None:
        raise RemoteProtocolError("a document without the $sortKey that was asked for")
    return found


def without_sort_key(document: bytes, span: Span) -> bytes:
    """Remove the ``$sortKey`` at ``span``, and the text score that precedes it after a ``$text``."""
    _, start, _, end = span
    if start >= _TEXT_SCORE_BYTES and document.startswith(_TEXT_SCORE, start - _TEXT_SCORE_BYTES):
        start -= _TEXT_SCORE_BYTES
    return (len(document) - end + start).to_bytes(4, "little") + document[4:start] + document[end:]


_LENGTH_BYTES: Final = 4
"""Size of the length at the start of a document."""

_PLAIN_FLAGS: Final = (0, 1)


class FieldOrder:
    """The order of whole documents by their fields.

    Args:
        components: the name of each field of the sort, and whether it descends.
    """

    def __init__(self, components: Sequence[tuple[bytes, bool]]) -> None:
        self._components = [_Component(name, descends=descends) for name, descends in components]

    @classmethod
    def of(cls, sort: bytes, order: SortOrder) -> "FieldOrder | None":
        """Return the order of a sort whose parsed form is ``order``; None if shards must add sort keys."""
        names = [name for name, span in spans(sort) if span[0] in NUMBERS and _is_top_level(name)]
        if len(set(names)) < len(order.descending):
            return None
        return cls(tuple(zip(names, order.descending, strict=True)))

    def keyed(self, documents: Sequence[bytes]) -> tuple[list[bytes], Sequence[bytes]]:
        """Return the keys of documents, and the documents unchanged (see `merge.Order`).

        Raises:
            InvalidBSONError: a document is not well-formed.
        """
        columns = [component.keys(documents) for component in self._components]
        if len(columns) == 1:
            return [key + END for key in columns[0]], documents
        return [b"".join(parts) + END for parts in zip(*columns, strict=True)], documents

    def is_kept_by(self, projection: bytes | None) -> bool:
        """Whether a projection clearly returns the fields of the sort as they are stored."""
        flags = {name: decode_value(projection, span) for name, span in spans(projection)} if projection else {}
        if not all(_is_top_level(name) and flag in _PLAIN_FLAGS for name, flag in flags.items()):
            return False
        others = [bool(flag) for name, flag in flags.items() if name != b"_id"] or [bool(flags.get(b"_id"))]
        if len(set(others)) > 1:
            return False
        is_inclusion = others[0]
        return all(flags.get(each.name, not is_inclusion or each.name == b"_id") for each in self._components)


def _is_top_level(name: bytes) -> bool:
    return name != b"" and b"." not in name and not name.startswith(b"$")


class _Component:
    """One field of the sort."""

    __slots__ = ("_descends", "_layout", "name")

    def __init__(self, name: bytes, *, descends: bool) -> None:
        self.name = name
        self._descends = descends
        self._layout: _Layout | None = None

    def keys(self, documents: Sequence[bytes]) -> list[bytes]:
        """Return this component of the keys of documents."""
        keys = None if self._layout is None else self._layout.keys(documents)
        if keys is None:
            self._layout = _Layout.of(documents[0], self.name)
            keys = None if self._layout is None else self._layout.keys(documents)
        if keys is None:
            keys = [_key(document, self.name, descends=self._descends) for document in documents]
        return [key.translate(INVERTED) for key in keys] if self._descends else keys


def _key(document: bytes, name: bytes, *, descends: bool) -> bytes:
    """Encode a document's sort value, in ascending form even if the sort descends."""
    span = find(document, name)
    if span is None:
        return ENCODED_NULL
    if span[0] != ARRAY:
        return encode_value(document, span)
    elements = (encode_value(document, element) for _, element in spans(document, span[2]))
    return (max if descends else min)(elements, default=ENCODED_UNDEFINED)


class _Layout:
    """The position of a field in documents, if its value and all preceding ones have types of fixed sizes.

    The documents of a collection mostly begin alike. If the types and names up to the field equal the layout's, at the
    same places, then the field is at the same place, too.

    Args:
        headers: the type and the name of each element up to and including the field, as encoded in documents.
        skipped: the sizes of the values of all but the field.
    """

    __slots__ = ("_column", "_headers", "_struct")

    def __init__(self, headers: Sequence[bytes], skipped: Sequence[int], column: KeyColumn) -> None:
        gaps = (*(f"{size}x" for size in skipped), column.code)
        parts = (f"{len(header)}s{gap}" for header, gap in zip(headers, gaps, strict=True))
        self._struct = Struct(f"<{_LENGTH_BYTES}x{''.join(parts)}")
        self._headers = tuple(headers)
        self._column = column

    @classmethod
    def of(cls, document: bytes, name: bytes) -> "_Layout | None":
        """Return the layout of a document, None if its field is at a variable place or missing."""
        headers: list[bytes] = []
        skipped: list[int] = []
        for each, (kind, element_start, value_start, value_end) in spans(document):
            column = KEY_COLUMNS.get(kind)
            if column is None:
                return None
            headers.append(document[element_start:value_start])
            if each == name:
                return cls(headers, skipped, column)
            skipped.append(value_end - value_start)
        return None

    def keys(self, documents: Sequence[bytes]) -> list[bytes] | None:
        """Return the keys of documents; None if one of them has another layout."""
        try:
            *headers, values = zip(*map(self._struct.unpack_from, documents), strict=True)
        except struct_error:
            return None  # one document is shorter
        count = len(documents)
        if all(found.count(header) == count for found, header in zip(headers, self._headers, strict=True)):
            return self._column.encode(values)
        return None
