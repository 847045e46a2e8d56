"""Translation of a filter into the ranges of shard key values that its matches can have.

The filter is read as raw BSON. Supported are equality, ``$eq``, ``$in``, ``$gt``, ``$gte``, ``$lt``, ``$lte``,
``$all``, ``$exists: false``, ``$type``, ``$mod``, regular expressions, ``$and`` and ``$or`` on the paths of the key,
and comparisons with constants in ``$expr``, which mongos uses in the same way. Any other condition does not restrict
the keys, which is always safe. A filter that mongod will refuse is sent nevertheless, and mongod's error comes back.

A filter is turned into a union of boxes (`targeting.values`): ``$and`` intersects, ``$or`` unites. All results are
supersets of the filter's matches.

**Exact keys** (`exact_shard_key`, `has_exact_id`). Upserts, single deletes and ``findAndModify`` need a filter that
fixes one shard key, or one ``_id``, by equality alone. The accepted forms are exactly MongoDB 6.0's: top-level
equality, ``$eq``, ``$in`` and ``$all`` of one value, inside of ``$and`` and of ``$or`` with one branch. A path that is
fixed twice, even to the same value, counts as conflicting. All of it was compared with mongod's own routing code.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Final, TypeAlias

from shardwright.sharding.key_order import AFTER, encode_value
from shardwright.sharding.shard_key import ShardKeyField, ShardKeyPattern, descend, refuse_deep_nesting
from shardwright.sharding.targeting.values import (
    ALL,
    Boxes,
    Intervals,
    absent,
    compared,
    compared_by_expression,
    compound_ranges,
    equal_to,
    intersect,
    intersection,
    is_collatable,
    is_point,
    limited,
    matching,
    numbers,
    of_types,
    union,
    unite,
    unlimited,
)
from shardwright.wire import rawbson
from shardwright.wire.rawbson import Span

_PLAIN: Final = frozenset(
    {rawbson.INT32, rawbson.INT64, rawbson.OBJECT_ID, rawbson.STRING, rawbson.DATE, rawbson.BINARY, rawbson.BOOL}
)
"""Types for which equality to a value means exactly that value's key bytes, hashed or not."""

_COMPARISONS: Final = frozenset({b"$gt", b"$gte", b"$lt", b"$lte"})

_SWAPPED: Final = {b"$gt": b"$lt", b"$gte": b"$lte", b"$lt": b"$gt", b"$lte": b"$gte"}
"""The equivalent comparison with its operands exchanged."""

_LITERALS: Final = frozenset({b"$literal", b"$const"})

FILTER_DEPTH_MAX: Final = 100
"""MongoDB refuses filters that are nested deeper."""

_Equality: TypeAlias = tuple[bytes, Span]

_ID: Final = ShardKeyPattern.from_mapping({"_id": 1})

_UNUSABLE: Final = frozenset({rawbson.ARRAY, rawbson.REGEX, rawbson.UNDEFINED})


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

    Without ``simple_collation``, comparisons with strings, and with types that may contain strings, restrict nothing.
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
            elif name == b"$expr":
                boxes = intersect(boxes, self._expression(document, span, depth))
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
            if name == b"$regex":
                values = intersection(values, self._matching(field, levels, document, span))
            else:
                values = intersection(values, self._operator(field, levels, name, document, operand))
        return values

    def _operator(self, field: ShardKeyField, levels: int, name: bytes, document: bytes, operand: Span) -> Intervals:
        if name == b"$eq":
            return equal_to(field, levels, document, operand, simple_collation=self._simple_collation)
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
        if name == b"$type":
            return of_types(field, document, operand)
        if name == b"$mod" and not field.hashed:
            return (numbers(),)
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

    def _matching(self, field: ShardKeyField, levels: int, document: bytes, span: Span) -> Intervals:
        """Return the values for which ``{$regex: …, $options: …}``, the object at ``span``, can hold."""
        parts = rawbson.index(document, span[2])
        written, options = parts[b"$regex"], b""
        if b"$options" in parts and parts[b"$options"][0] == rawbson.STRING:
            options = _text(document, parts[b"$options"])
        if levels == len(field.path) and written[0] == rawbson.REGEX:
            pattern, own_options = _regular_expression(document, written)
            return matching(field, pattern, options or own_options)
        if levels == len(field.path) and written[0] == rawbson.STRING:
            return matching(field, _text(document, written), options)
        return ALL

    def _expression(self, document: bytes, span: Span, depth: int) -> Boxes:
        """Return the keys for which an expression can be true.

        mongos rewrites the same expressions: comparisons of a path with a constant, and ``$and`` and ``$or`` of them.
        """
        if span[0] != rawbson.OBJECT or depth > FILTER_DEPTH_MAX:
            return self._unlimited
        operators = list(rawbson.spans(document, span[2]))
        if len(operators) != 1 or operators[0][1][0] != rawbson.ARRAY:
            return self._unlimited
        name, operand = operators[0]
        operands = [below for _, below in rawbson.spans(document, operand[2])]
        if name == b"$and":
            return reduce(
                intersect, [self._expression(document, each, depth + 1) for each in operands], self._unlimited
            )
        if name == b"$or":
            return self._any_of([self._expression(document, each, depth + 1) for each in operands])
        if len(operands) == 2 and (name == b"$eq" or name in _COMPARISONS):
            return self._compared_by_expression(name, document, *operands)
        return self._unlimited

    def _compared_by_expression(self, name: bytes, document: bytes, left: Span, right: Span) -> Boxes:
        path = _field_path(document, left)
        if path is None:
            path, right, name = _field_path(document, right), left, _SWAPPED.get(name, name)
        constant = _constant(document, right)
        boxes = self._unlimited
        if path is None or constant is None:
            return boxes
        simple = self._simple_collation
        for position, levels in self._on_path.get(path, ()):
            field = self._fields[position]
            if levels < len(field.path):
                continue
            if name == b"$eq":
                values = equal_to(field, levels, document, constant, simple_collation=simple)
            else:
                values = compared_by_expression(field, name, document, constant, simple_collation=simple)
            if values != ALL:
                boxes = intersect(boxes, limited(len(self._fields), position, values))
        return boxes

    def _equal_to(self, field: ShardKeyField, levels: int, document: bytes, span: Span) -> Intervals:
        if span[0] == rawbson.REGEX and levels == len(field.path):
            return matching(field, *_regular_expression(document, span))
        return equal_to(field, levels, document, span, simple_collation=self._simple_collation)


def _field_path(document: bytes, span: Span) -> bytes | None:
    """Return the path that an operand of an expression reads; None if it is anything else, or a variable."""
    text = _text(document, span) if span[0] == rawbson.STRING else b""
    return text[1:] if text.startswith(b"$") and not text.startswith(b"$$") else None


def _constant(document: bytes, span: Span) -> Span | None:
    """Return the operand of an expression as a constant; None if it is not one that mongos can use."""
    if span[0] == rawbson.OBJECT:
        fields = list(rawbson.spans(document, span[2]))
        if len(fields) != 1 or fields[0][0] not in _LITERALS:
            return None
        span = fields[0][1]
    elif span[0] == rawbson.STRING and document[span[2] + 4] == 0x24:
        return None
    return None if span[0] in (rawbson.ARRAY, rawbson.UNDEFINED) else span


def _regular_expression(document: bytes, span: Span) -> tuple[bytes, bytes]:
    """Return the pattern and the options of a regular expression."""
    pattern, options, _ = document[span[2] : span[3]].split(b"\0")
    return pattern, options


def _text(document: bytes, span: Span) -> bytes:
    return document[span[2] + 4 : span[3] - 1]


def is_operator_object(document: bytes, span: Span) -> bool:
    """Whether a value in a filter is ``{$<operator>: …}`` rather than an operand of equality."""
    return (
        span[0] == rawbson.OBJECT and span[3] - span[2] > rawbson.DOCUMENT_BYTES_MIN and document[span[2] + 5] == 0x24
    )


def exact_shard_key(filter_document: bytes, pattern: ShardKeyPattern) -> bytes | None:
    """Return the shard key document that every match of the filter has, hashed values hashed; None if not fixed."""
    equalities = _relevant_equalities(filter_document, pattern)
    if equalities is None:
        return None
    elements = []
    for field in pattern.fields:
        found = next(
            (
                descend(filter_document, equalities[path], field.path[levels:])
                for levels, path in enumerate(field.ancestors, 1)
                if path in equalities
            ),
            None,
        )
        if found is None or found[0] in _UNUSABLE:
            return None
        refuse_deep_nesting(filter_document, found)
        elements.append(rawbson.element(field.name, *field.key_value(filter_document, found)))
    return rawbson.from_elements(b"".join(elements))


def has_exact_id(filter_document: bytes, *, collection_collation: bool = True) -> bool:
    """Whether every match of the filter has one ``_id``, so that at most one document in each shard matches.

    Unless the operation collates like the collection, an ``_id`` that depends on collation does not count.
    """
    key = exact_shard_key(filter_document, _ID)
    return key is not None and (collection_collation or not is_collatable(key[4]))


def _relevant_equalities(filter_document: bytes, pattern: ShardKeyPattern) -> dict[bytes, Span] | None:
    """Return the equalities on paths of the key, above them and below them; None if two concern the same value."""
    found: dict[bytes, Span] = {}
    for path, span in _equalities(filter_document, 0, 0):
        if any(_one_above_other(path, field.name) for field in pattern.fields):
            if any(_one_above_other(path, other) for other in found):
                return None
            found[path] = span
    return found


def _one_above_other(path: bytes, other: bytes) -> bool:
    return path == other or path.startswith(other + b".") or other.startswith(path + b".")


def _equalities(document: bytes, start: int, depth: int) -> Iterator[_Equality]:
    """Yield all equalities that a match must satisfy, as path and value."""
    if depth > FILTER_DEPTH_MAX:
        return
    for name, span in rawbson.spans(document, start):
        if name == b"$and" or (name == b"$or" and _length(document, span) == 1):
            if span[0] == rawbson.ARRAY:
                for _, branch in rawbson.spans(document, span[2]):
                    if branch[0] == rawbson.OBJECT:
                        yield from _equalities(document, branch[2], depth + 1)
        elif name.startswith(b"$"):
            continue
        elif is_operator_object(document, span):
            for operator, operand in rawbson.spans(document, span[2]):
                value = _single_operand(document, operator, operand)
                if value is not None:
                    yield name, value
        elif span[0] != rawbson.REGEX:  # a bare regular expression matches strings; only $eq tests equality
            yield name, span


def _single_operand(document: bytes, operator: bytes, operand: Span) -> Span | None:
    """Return the one value that an operator tests equality with; None if there is not exactly one."""
    if operator == b"$eq":
        return operand
    if operator not in (b"$in", b"$all") or operand[0] != rawbson.ARRAY:
        return None
    values = [span for _, span in rawbson.spans(document, operand[2])]
    if not values or values[0][0] == rawbson.REGEX or is_operator_object(document, values[0]):
        return None
    if len(values) > 1 and (operator == b"$all" or not _all_equal(document, values)):
        return None
    return values[0]


def _all_equal(document: bytes, values: list[Span]) -> bool:
    for value in values:
        refuse_deep_nesting(document, value)
    return len({encode_value(document, value) for value in values}) == 1


def _length(document: bytes, span: Span) -> int:
    if span[0] != rawbson.ARRAY:
        return 0
    return sum(1 for _ in rawbson.spans(document, span[2]))
