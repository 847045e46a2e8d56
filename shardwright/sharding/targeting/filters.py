"""Translation of a filter into the ranges of shard key values that its matches can have.

The filter is read as raw BSON. Supported are equality, ``$eq``, ``$in``, ``$gt``, ``$gte``, ``$lt``, ``$lte``,
``$all``, ``$exists: false``, ``$and`` and ``$or`` on the paths of the key. Any other condition does not restrict the
keys, which is always safe. A filter that mongod will refuse is sent nevertheless, and mongod's error comes back.
"""

from dataclasses import dataclass
from functools import reduce
from typing import Final

from shardwright.sharding.key_order import AFTER, encode_value
from shardwright.sharding.shard_key import ShardKeyField, ShardKeyPattern
from shardwright.sharding.targeting.boxes import Boxes, compound_ranges, intersect, limited, unite, unlimited
from shardwright.sharding.targeting.intervals import ALL, Intervals, intersection, is_point, union
from shardwright.sharding.targeting.values import absent, compared, equal_to
from shardwright.wire import rawbson
from shardwright.wire.rawbson import Span

_PLAIN: Final = frozenset(
    {rawbson.INT32, rawbson.INT64, rawbson.OBJECT_ID, rawbson.STRING, rawbson.DATE, rawbson.BINARY, rawbson.BOOL}
)
"""Types for which equality to a value means exactly that value's key bytes, hashed or not."""

_COMPARISONS: Final = frozenset({b"$gt", b"$gte", b"$lt", b"$lte"})

FILTER_DEPTH_MAX: Final = 100
"""MongoDB refuses filters that are nested deeper."""


@dataclass(frozen=True, slots=True)
class KeyRanges:
    """Sorted, disjoint, half-open ranges of key bytes; none if nothing can match.

    ``point`` is set if they are one whole shard key.
    """

    ranges: tuple[tuple[bytes, bytes], ...]
    point: bytes | None = None

    @property
    def is_everything(self) -> bool:
        """Whether the keys are not restricted at all."""
        return self.ranges == ALL


EVERYTHING: Final = KeyRanges(ALL)


def only_key(filter_document: bytes, pattern: ShardKeyPattern) -> bytes | None:
    """Return the key bytes for a filter of the most frequent form, ``{<the key>: <plain value>}``; else None.

    It is what `key_ranges` says of such a filter, for the simple collation, in a fraction of the time.
    """
    if len(pattern.fields) > 1 or filter_document[4] not in _PLAIN:
        return None
    field = pattern.fields[0]
    span = rawbson.index(filter_document).get(field.name)
    if span is None or span[1] != 4 or span[3] != len(filter_document) - 1:
        return None
    return field.key_bytes(filter_document, span) if field.hashed else encode_value(filter_document, span)


def key_ranges(filter_document: bytes, pattern: ShardKeyPattern, *, simple_collation: bool = True) -> KeyRanges:
    """Return the keys that matches of a filter can have.

    Without ``simple_collation``, strings, and types that may contain strings, are restricted by type only.
    """
    boxes = _FilterReader(pattern, simple_collation).document(filter_document, 0, 0)
    if len(boxes) == 1 and all(len(values) == 1 and is_point(values[0]) for values in boxes[0]):
        key = b"".join([values[0][0] for values in boxes[0]])
        return KeyRanges(((key, key + AFTER),), key)
    ranges = union(tuple(compound_ranges(box)) for box in boxes)
    return EVERYTHING if ranges == ALL else KeyRanges(ranges)


class _FilterReader:
    """Reader of the filters of one operation."""

    __slots__ = ("_fields", "_on_path", "_simple_collation", "_unlimited")

    def __init__(self, pattern: ShardKeyPattern, simple_collation: bool) -> None:
        self._fields = pattern.fields
        self._simple_collation = simple_collation
        self._unlimited = unlimited(len(pattern.fields))
        self._on_path = pattern.fields_by_path

    def document(self, document: bytes, start: int, depth: int) -> Boxes:
        """Return the keys that match all conditions of a filter document."""
        boxes = self._unlimited
        if depth > FILTER_DEPTH_MAX:
            return boxes
        for name, span in rawbson.spans(document, start):
            if name in self._on_path:
                for position, levels in self._on_path[name]:
                    values = self._predicate(self._fields[position], levels, document, span)
                    if values != ALL:
                        boxes = intersect(boxes, limited(len(self._fields), position, values))
            elif name == b"$and":
                boxes = reduce(intersect, self._branches(document, span, depth), boxes)
            elif name == b"$or":
                boxes = intersect(boxes, self._any_of(self._branches(document, span, depth)))
        return boxes

    def _branches(self, document: bytes, span: Span, depth: int) -> list[Boxes]:
        """Return the keys of each branch of ``$and`` or ``$or``; mongod refuses anything but a document."""
        if span[0] != rawbson.ARRAY:
            return []
        return [
            self.document(document, below[2], depth + 1) if below[0] == rawbson.OBJECT else self._unlimited
            for _, below in rawbson.spans(document, span[2])
        ]

    def _any_of(self, branches: list[Boxes]) -> Boxes:
        if not branches or self._unlimited in branches:
            return self._unlimited
        return unite(branches)

    def _predicate(self, field: ShardKeyField, levels: int, document: bytes, span: Span) -> Intervals:
        """Return the values of a field for which ``{<first levels of its path>: <value at span>}`` can hold."""
        if not is_operator_object(document, span):
            return self._equal_to(field, levels, document, span)
        values = ALL
        for name, operand in rawbson.spans(document, span[2]):
            values = intersection(values, self._operator(field, levels, name, document, operand))
        return values

    def _operator(self, field: ShardKeyField, levels: int, name: bytes, document: bytes, operand: Span) -> Intervals:
        if name == b"$eq":
            return self._equal_to(field, levels, document, operand)
        if name == b"$in" and operand[0] == rawbson.ARRAY:
            each = [self._equal_to(field, levels, document, below) for _, below in rawbson.spans(document, operand[2])]
            return ALL if ALL in each else union(each)
        if name == b"$all" and operand[0] == rawbson.ARRAY:
            return self._all_of(field, levels, document, operand)
        if levels < len(field.path):
            return ALL
        if name in _COMPARISONS:
            return compared(field, name, document, operand, simple_collation=self._simple_collation)
        if name == b"$exists" and operand[0] == rawbson.BOOL and not document[operand[2]]:
            return absent(field)
        return ALL

    def _all_of(self, field: ShardKeyField, levels: int, document: bytes, operand: Span) -> Intervals:
        """Intersect the equalities of ``$all``.

        A value other than an array has all of some values only if it equals each of them, and no value has all of none.
        """
        values = ALL
        for _, below in rawbson.spans(document, operand[2]):
            if is_operator_object(document, below):  # $elemMatch
                return ALL
            values = intersection(values, self._equal_to(field, levels, document, below))
        return values

    def _equal_to(self, field: ShardKeyField, levels: int, document: bytes, span: Span) -> Intervals:
        return equal_to(field, levels, document, span, simple_collation=self._simple_collation)


def is_operator_object(document: bytes, span: Span) -> bool:
    """Whether a value in a filter is ``{$<operator>: …}`` rather than an operand of equality."""
    return (
        span[0] == rawbson.OBJECT and span[3] - span[2] > rawbson.DOCUMENT_BYTES_MIN and document[span[2] + 5] == 0x24
    )
