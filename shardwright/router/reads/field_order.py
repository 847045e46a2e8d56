"""The order of a sort by top-level fields, read from whole documents.

A shard that has to add a ``$sortKey`` to each document builds the document twice: that is a third to a half of what a
sorted find costs a mongod. A sort by top-level fields under the simple collation does not need it. By MongoDB's rules,
the value of such a field is

* the field's, or null if the document has none;
* of an array the element that comes first in the direction of the sort, undefined if it is empty. With several
  components only one can be an array (mongod refuses to sort parallel ones), so components do not depend on each other.

Paths with dots expand arrays on their way in ways of their own, so they are left to the shards, as are ``$meta`` and
all that returns something else than the field as it is stored (see `FindArguments.parse`).
"""

from collections.abc import Sequence
from struct import Struct
from struct import error as struct_error
from typing import Final

from shardwright.router.reads.sort_order import END, INVERTED, NUMBERS, SortOrder
from shardwright.sharding.key_columns import KEY_COLUMNS, KeyColumn
from shardwright.sharding.key_order import ENCODED_NULL, ENCODED_UNDEFINED, encode_value
from shardwright.wire.rawbson import ARRAY, decode_value, find, spans

_LENGTH_BYTES: Final = 4
"""The length at the beginning of a document."""

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
        keys = None if self._layout is None else self._layout.keys(documents)
        if keys is None:
            self._layout = _Layout.of(documents[0], self.name)
            keys = None if self._layout is None else self._layout.keys(documents)
        if keys is None:
            keys = [_key(document, self.name, descends=self._descends) for document in documents]
        return [key.translate(INVERTED) for key in keys] if self._descends else keys


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

    The documents of a collection mostly begin alike. If the types and names up to the field are those of the layout, at
    the same places, a walk over the elements would find the field at the same place too.

    Args:
        headers: the type and the name of each element up to and including the field, as they stand in documents.
        skipped: the sizes of the values of all but the field.
        column: reads the field.
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
        """The layout of a document, None if it has the field elsewhere or not at all."""
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
        """The keys of documents; None if one of them has another layout."""
        try:
            *headers, values = zip(*map(self._struct.unpack_from, documents), strict=True)
        except struct_error:
            return None  # one is shorter
        count = len(documents)
        if all(found.count(header) == count for found, header in zip(headers, self._headers, strict=True)):
            return self._column.encode(values)
        return None
