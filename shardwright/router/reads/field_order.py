"""The order of a sort by top-level fields, read from whole documents.

A shard that has to add a ``$sortKey`` to each document builds the document twice: that is a third to a half of what a
sorted find costs a mongod. A sort by top-level fields under the simple collation does not need it. By MongoDB's rules,
the value of such a field is

* the field's, or null if the document has none;
* of an array the element that comes first in the direction of the sort, undefined if it is empty. With several
  components only one can be an array (mongod refuses to sort parallel ones), so components do not depend on each other.

Paths with dots expand arrays on their way in ways of their own, so they are left to the shards, as are ``$meta`` and
all that returns something else than the field as it is stored (see `reads_whole_fields`).
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from shardwright.router.reads.sort_order import END, INVERTED, NUMBERS, SortOrder
from shardwright.sharding.key_order import ENCODED_NULL, ENCODED_UNDEFINED, Encoder, encode_value, encoder_of
from shardwright.wire.rawbson import (
    ARRAY,
    BOOL,
    DATE,
    DOUBLE,
    INT32,
    INT64,
    OBJECT_ID,
    TIMESTAMP,
    decode_value,
    find,
    spans,
)

_FIXED_SIZES: Final[Mapping[int, int]] = {
    DOUBLE: 8,
    OBJECT_ID: 12,
    BOOL: 1,
    DATE: 8,
    INT32: 4,
    TIMESTAMP: 8,
    INT64: 8,
}
"""The types whose values all have the same size."""

_PLAIN_FLAGS: Final = (0, 1)


class FieldOrder:
    """How two whole documents compare.

    Args:
        components: of the sort: the name of each field, and whether it descends.
    """

    def __init__(self, components: Sequence[tuple[bytes, bool]]) -> None:
        self._components = [_Component(name, descends=descends) for name, descends in components]

    @classmethod
    def of(cls, sort: bytes, order: SortOrder) -> "FieldOrder | None":
        """The order of a sort whose parsed form is ``order``; None if shards have to add sort keys."""
        names = [name for name, span in spans(sort) if span[0] in NUMBERS and _is_top_level(name)]
        if len(set(names)) < len(order.descending):
            return None
        return cls(tuple(zip(names, order.descending, strict=True)))

    def keyed(self, documents: Sequence[bytes]) -> tuple[list[bytes], Sequence[bytes]]:
        """The keys of documents, and the documents as they are (see `merge.Order`).

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
    """One field of the sort.

    Attributes:
        name: of the field.
    """

    __slots__ = ("_descends", "_layout", "name")

    def __init__(self, name: bytes, *, descends: bool) -> None:
        self.name = name
        self._descends = descends
        self._layout: _Layout | None = None

    def keys(self, documents: Sequence[bytes]) -> list[bytes]:
        """This component of the keys of documents."""
        if self._layout is None or self._layout.key(documents[0]) is None:
            self._layout = _Layout.of(documents[0], self.name)
        key_in = _no_key if self._layout is None else self._layout.key
        name, descends = self.name, self._descends
        keys = [key_in(document) or _key(document, name, descends=descends) for document in documents]
        return [key.translate(INVERTED) for key in keys] if descends else keys


def _no_key(_document: bytes) -> None:
    return None


def _key(document: bytes, name: bytes, *, descends: bool) -> bytes:
    """What a document is sorted by, ascending even if the sort descends."""
    span = find(document, name)
    if span is None:
        return ENCODED_NULL
    if span[0] != ARRAY:
        return encode_value(document, span)
    elements = (encode_value(document, element) for _, element in spans(document, span[2]))
    return (max if descends else min)(elements, default=ENCODED_UNDEFINED)


class _Layout:
    """Where documents have a field, if its value and all that precedes it have types of fixed sizes.

    The documents of a collection mostly begin alike, and a pattern finds the field four times as fast as a walk does.

    Args:
        pattern: matches the elements of a document up to and including the field.
        encoder: of the field's type.
        size: of its value in bytes.
    """

    __slots__ = ("_encoder", "_match", "_size")

    def __init__(self, pattern: bytes, encoder: Encoder, size: int) -> None:
        self._match = re.compile(pattern, re.DOTALL).match
        self._encoder = encoder
        self._size = size

    @classmethod
    def of(cls, document: bytes, name: bytes) -> "_Layout | None":
        """The layout of a document, None if it has the field elsewhere or not at all."""
        pattern = b""
        for each, (kind, element_start, value_start, _) in spans(document):
            size = _FIXED_SIZES.get(kind)
            if size is None:
                return None
            pattern += re.escape(document[element_start:value_start]) + b".{%d}" % size
            if each == name:
                return cls(pattern, encoder_of(kind), size)
        return None

    def key(self, document: bytes) -> bytes | None:
        """As `_key`; None if the document has another layout."""
        found = self._match(document, 4)
        if found is None:
            return None
        end = found.end()
        return self._encoder(document, end - self._size, end)
