"""The order in which the results of several shards are merged.

A shard that is asked for it puts the sort key of each document into its ``$sortKey``: the values of the sort's
components, in an array, already evaluated (``$meta``) and already transformed by the collation. So the router compares
them as plain values, component by component, each in its direction.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shardwright.sharding.key_order import encode_value
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
    spans,
)

SORT_KEY: Final = b"$sortKey"

INVERTED: Final = bytes(255 - byte for byte in range(256))
"""Translates an encoding to one that compares the other way round."""

NUMBERS: Final = frozenset({INT32, INT64, DOUBLE, DECIMAL128})

END: Final = b"\x80"
"""Ends a key. One encoding may begin with another ("a" and "a\\0"), and then the next byte decides: this one lies
between the longer one's escape and the inverse of that."""

# Types whose values all have the same size. An array with the size of one such value holds just this.
_FIXED_SIZES: Final = {INT32: 4, INT64: 8, DOUBLE: 8, DATE: 8, TIMESTAMP: 8, OBJECT_ID: 12}
_ARRAY_OF_ONE_BYTES: Final = 8
"""The array's length, the value's type, its name ``0`` with a NUL, and the array's end."""

# $sortKey and its NUL, as it appears in a document.
_SORT_KEY_NAME: Final = SORT_KEY + b"\0"

# The type and name of the metadata element that shards add in front of it, and its size with the double that follows.
_TEXT_SCORE: Final = bytes((DOUBLE,)) + b"$textScore\0"
_TEXT_SCORE_BYTES: Final = len(_TEXT_SCORE) + 8


@dataclass(frozen=True, slots=True)
class SortOrder:
    """How two documents that carry a ``$sortKey`` compare.

    Attributes:
        descending: for each component of the sort whether it descends.
        is_whole_key: the ``$sortKey`` is one ascending value and not an array of components (``$near``).
    """

    descending: tuple[bool, ...]
    is_whole_key: bool = False

    @classmethod
    def parse(cls, sort: bytes) -> "SortOrder | None":
        """The order that a ``sort`` document asks for; None if results may come in any order.

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
        """The keys of documents that carry their ``$sortKey``, and the documents without it (see `merge.Order`).

        Raises:
            RemoteProtocolError: a document lacks it, or it has other components than the sort.
        """
        spans_of_keys = [sort_key_span(document) for document in documents]
        keys = list(map(self.key, documents, spans_of_keys))
        return keys, list(map(without_sort_key, documents, spans_of_keys))

    def key(self, document: bytes, span: Span) -> bytes:
        """Bytes that compare as the document does, from the ``$sortKey`` found at ``span``.

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
"""The order of a ``$near`` query without a sort: ``$sortKey`` is the distance."""


def decode_value_is_negative(document: bytes, span: Span) -> bool:
    """Whether the number at ``span`` is below zero; NaN is not."""
    value = decode_value(document, span)
    number = value.to_decimal() if span[0] == DECIMAL128 else value
    return bool(number == number and number < 0)  # a decimal NaN does not compare


def sort_key_span(document: bytes) -> Span:
    """Where the ``$sortKey`` of a document is.

    Every document that a shard sends for a merge has one at its top level. So if the name occurs once in its bytes,
    this is it, and the elements before it need not be walked.

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
    """The document without the ``$sortKey`` at ``span``, and the text score in front of it after a ``$text``."""
    _, start, _, end = span
    if start >= _TEXT_SCORE_BYTES and document.startswith(_TEXT_SCORE, start - _TEXT_SCORE_BYTES):
        start -= _TEXT_SCORE_BYTES
    return (len(document) - end + start).to_bytes(4, "little") + document[4:start] + document[end:]
