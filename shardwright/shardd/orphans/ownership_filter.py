"""The filter that hides documents in orphan ranges from operations.

An aggregation expression compares a document's shard key, as routing tables do. ``$expr`` compares values of all types
in BSON order, which is the order of shard keys. Three exceptions are corrected here:

- A missing field counts as null.
- A hashed field counts as its hash, which ``$toHashedIndexKey`` computes.
- Strings are compared under the operation's collation, but shard keys are compared byte by byte. Field names are never
  collated. Under any collation but the simple one, a string ``s`` is therefore compared as the document ``{s: 0}``, and
  embedded documents and arrays are compared part by part along the bound.

All of this was observed on mongod; the tests compare it with `sharding.key_order`.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, Final, TypeAlias

from shardwright.shardd.orphans.range_deletion_tasks import extended, merged
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.shard_key import ShardKeyField, ShardKeyPattern
from shardwright.sharding.targeting.values import is_simple
from shardwright.wire import rawbson
from shardwright.wire.rawbson import Span, encode_elements, from_elements, raw_document, type_name, wrap_value

Expression: TypeAlias = Any
"""A BSON value that mongod evaluates."""

_STRINGS: Final = (rawbson.STRING, rawbson.SYMBOL)
_NUMBERS: Final = (rawbson.INT32, rawbson.INT64, rawbson.DOUBLE, rawbson.DECIMAL128)
_TYPES_OF_ONE_RANK: Final = (_STRINGS, _NUMBERS)
_ESCAPES: Final = (("\x01", "\x01\x02"), ("\x00", "\x01\x01"))
"""Field names cannot contain NUL. These escapes preserve the order of strings."""


def shard_key(pattern: ShardKeyPattern) -> Expression:
    """Return the expression for a document's shard key, an array of values."""
    return [_field_value(field) for field in pattern.fields]


def is_below(key: Expression, bound: bytes, *, is_collated: bool) -> Expression:
    """Return the condition that a shard key sorts before a bound.

    Args:
        key: an expression with the value of `shard_key`.
        is_collated: whether a collation other than the simple one is in force.
    """
    values = [span for _, span in rawbson.spans(bound)]
    if not is_collated or not has_strings(bound):
        return {"$lt": [key, [_literal(bound, span) for span in values]]}
    signs = [_compare(_element(key, position), bound, span) for position, span in enumerate(values)]
    return {"$lt": [signs, [0] * len(signs)]}


def has_strings(document: bytes, start: int = 0) -> bool:
    """Whether the document that begins at ``start`` contains a string, at any depth."""
    return any(_is_collatable(document, span) for _, span in rawbson.spans(document, start))


def _field_value(field: ShardKeyField) -> Expression:
    path = "$" + field.name.decode()
    value = {"$cond": [{"$eq": [{"$type": path}, "missing"]}, None, path]}
    return {"$toHashedIndexKey": value} if field.hashed else value


def _compare(value: Expression, document: bytes, span: Span) -> Expression:
    """Return the sign of comparing a value with the constant, as -1, 0 or 1; strings are compared as bytes."""
    if not _is_collatable(document, span):
        return {"$cmp": [value, _literal(document, span)]}
    if span[0] in _STRINGS:
        text = document[span[2] + 4 : span[3] - 1]
        same_type: Expression = {"$cmp": [_as_name(_escaped(_as_string(value))), _constant_name(_escape(text))]}
    elif span[0] == rawbson.OBJECT:
        same_type = _compare_fields(value, document, span)
    else:
        same_type = _compare_elements(value, document, span)
    return {"$cond": [_has_type_of(value, span[0]), same_type, {"$cmp": [value, _smallest(span[0])]}]}


def _compare_fields(value: Expression, document: bytes, span: Span) -> Expression:
    """Compare documents field by field: by type, then name, then value. The one that ends first sorts first."""
    signs: list[Expression] = []
    fields = list(rawbson.spans(document, span[2]))
    for position, (name, below) in enumerate(fields):
        field_name, field_value = _element("$$fields.k", position), _element("$$fields.v", position)
        constant = _literal(document, below)
        signs += [
            _end_order("$$fields", position),
            {"$cond": [_has_type_of(field_value, below[0]), 0, {"$cmp": [field_value, constant]}]},
            {"$cmp": [_as_name({"$ifNull": [field_name, ""]}), _constant_name(name)]},
            _compare(field_value, document, below),
        ]
    signs.append({"$cmp": [{"$size": "$$fields"}, len(fields)]})
    return {"$let": {"vars": {"fields": {"$objectToArray": value}}, "in": _first_difference(signs)}}


def _compare_elements(value: Expression, document: bytes, span: Span) -> Expression:
    """Compare arrays element by element. The one that ends first sorts first."""
    signs: list[Expression] = []
    elements = list(rawbson.spans(document, span[2]))
    for position, (_, below) in enumerate(elements):
        signs += [_end_order("$$elements", position), _compare(_element("$$elements", position), document, below)]
    signs.append({"$cmp": [{"$size": "$$elements"}, len(elements)]})
    return {"$let": {"vars": {"elements": value}, "in": _first_difference(signs)}}


def _end_order(array: str, position: int) -> Expression:
    """Return -1 if an array ends before a position, else 0."""
    return {"$cond": [{"$gt": [{"$size": array}, position]}, 0, -1]}


def _first_difference(signs: list[Expression]) -> Expression:
    """Return the first sign other than 0; 0 if there is none."""
    return {"$cmp": [signs, [0] * len(signs)]}


def _as_name(text: Expression) -> Expression:
    """Wrap a string as the name of a document's only field."""
    return {"$arrayToObject": [[{"k": text, "v": 0}]]}


def _constant_name(name: bytes) -> Expression:
    return raw_document(wrap_value(rawbson.OBJECT, wrap_value(rawbson.INT32, bytes(4), name), b"$literal"))


def _escaped(text: Expression) -> Expression:
    for find, replacement in _ESCAPES:
        text = {"$replaceAll": {"input": text, "find": find, "replacement": replacement}}
    return text


def _escape(text: bytes) -> bytes:
    for find, replacement in _ESCAPES:
        text = text.replace(find.encode(), replacement.encode())
    return text


def _as_string(value: Expression) -> Expression:
    """Convert a symbol to a string. Strings are not converted, since the conversion fails on invalid UTF-8."""
    return {"$cond": [{"$eq": [{"$type": value}, "symbol"]}, {"$substrBytes": [value, 0, -1]}, value]}


def _has_type_of(value: Expression, kind: int) -> Expression:
    """Return the condition that a value has the given type, or one compared with it by value."""
    kinds = next((kinds for kinds in _TYPES_OF_ONE_RANK if kind in kinds), (kind,))
    return {"$in": [{"$type": value}, [type_name(each) for each in kinds]]}


def _smallest(kind: int) -> Expression:
    """Return the smallest value of a type, against which values of other types compare by type."""
    return {"$literal": "" if kind in _STRINGS else {} if kind == rawbson.OBJECT else []}


def _element(array: Expression, position: int) -> Expression:
    return {"$arrayElemAt": [array, position]}


def _literal(document: bytes, span: Span) -> Expression:
    return raw_document(wrap_value(span[0], document[span[2] : span[3]], b"$literal"))


def _is_collatable(document: bytes, span: Span) -> bool:
    """Whether a value is a string or contains one."""
    if span[0] in (rawbson.OBJECT, rawbson.ARRAY):
        return has_strings(document, span[2])
    return span[0] in _STRINGS


KEY_VARIABLE: Final = "ownedShardKey"
"""Variable that marks filters in replies that show queries."""

COMPLETE_KEY_VARIABLE: Final = "ownedShardKeyOnly"
"""Variable that marks complete filters."""


class OwnershipFilter:
    """A filter for the orphans of a collection, applied here or as a query.

    Args:
        ranges: the ranges that may hold orphans, sorted, without overlap.
        is_complete: whether the ranges are everything that the shard does not own, so that the filter also hides
            anything that arrives later.
    """

    def __init__(
        self,
        pattern: ShardKeyPattern,
        ranges: Sequence[ChunkRange],
        default_collation: Mapping[str, Any] | None,
        *,
        is_complete: bool = False,
    ) -> None:
        self.pattern = pattern
        self.ranges = tuple(ranges)
        self.default_collation = default_collation
        self._min_keys = [each.min_key for each in ranges]
        self.is_complete = is_complete
        self._variable = COMPLETE_KEY_VARIABLE if is_complete else KEY_VARIABLE

    def is_orphan(self, key: bytes) -> bool:
        """Whether a document with this encoded shard key is an orphan."""
        position = bisect_right(self._min_keys, key) - 1
        return position >= 0 and self._is_below_max(key, self.ranges[position])

    def covers(self, document: bytes) -> bool:
        """Whether a raw document, or just its shard key, is in one of the ranges."""
        return self.is_orphan(self.pattern.key_bytes_of_document(document))

    def overlaps(self, low: bytes, high: bytes) -> bool:
        """Whether a key between two bounds, which may be any byte strings, can belong to an orphan."""
        # The ranges are disjoint, so the last one that begins below `high` also ends last.
        position = bisect_left(self._min_keys, high) - 1
        return position >= 0 and low < self.ranges[position].max_key

    def merged_with(self, later: "OwnershipFilter") -> "OwnershipFilter":
        """Merge in the ranges of a later filter, whose shard key may refine this one's; itself if it has them all."""
        own = self.ranges
        if later.pattern.document != self.pattern.document:
            own = tuple(extended(each.min, each.max, later.pattern) for each in own)
        ranges = merged((*own, *later.ranges))
        return self if ranges == self.ranges else OwnershipFilter(later.pattern, ranges, later.default_collation)

    def element(self, collation: Mapping[str, Any] | None) -> bytes:
        """Return the ``$expr`` element that makes a query exclude orphans.

        A query may contain several elements of that name; all of them must be true.

        Args:
            collation: the collation in force: the operation's, or else the collection's.
        """
        return self._element if is_simple(collation) or not self.depends_on_collation else self._collated_element

    def query(self, collation: Mapping[str, Any] | None) -> bytes:
        """Return a query that matches all documents except orphans."""
        return from_elements(self.element(collation))

    @cached_property
    def depends_on_collation(self) -> bool:
        """Whether `element` differs between the simple collation and others."""
        return any(has_strings(each.min) or has_strings(each.max) for each in self.ranges)

    @cached_property
    def _element(self) -> bytes:
        return encode_elements({"$expr": self._expression(is_collated=False)})

    @cached_property
    def _collated_element(self) -> bytes:
        return encode_elements({"$expr": self._expression(is_collated=True)})

    def _expression(self, *, is_collated: bool) -> Expression:
        key = {self._variable: shard_key(self.pattern)}
        return {"$let": {"vars": key, "in": self._decide(0, len(self.ranges), is_collated=is_collated)}}

    def _decide(self, first: int, end: int, *, is_collated: bool) -> Expression:
        """Return the condition that a key is in none of the ranges from ``first`` to ``end``, by bisection."""
        if first == end:
            return True
        key = f"$${self._variable}"
        middle = (first + end) // 2
        range_ = self.ranges[middle]
        before = self._decide(first, middle, is_collated=is_collated)
        behind = self._decide(middle + 1, end, is_collated=is_collated)
        if range_.max_key != self.pattern.global_max_bytes():  # no key is above it
            behind = {"$cond": [is_below(key, range_.max, is_collated=is_collated), False, behind]}
        else:
            behind = False
        if range_.min_key == self.pattern.global_min_bytes():
            return behind
        return {"$cond": [is_below(key, range_.min, is_collated=is_collated), before, behind]}

    def _is_below_max(self, key: bytes, range_: ChunkRange) -> bool:
        return key < range_.max_key or range_.max_key == self.pattern.global_max_bytes()


def has_complete_filter(query: Mapping[str, Any]) -> bool:
    """Whether a query contains a complete filter."""
    expression: Any = query
    for name in ("$expr", "$let", "vars"):
        expression = expression.get(name)
        if not isinstance(expression, Mapping):
            return False
    return COMPLETE_KEY_VARIABLE in expression


RANGES_MAX: Final = 1_000
"""With more ranges, mongod would take longer to parse the filter than to run most operations."""


def unowned_filter(table: RoutingTable, shard: str) -> OwnershipFilter | None:
    """Return the filter that matches only documents that a shard owns; None if it would have too many ranges."""
    unowned = (part for is_owned, part in table.ranges_by_ownership(shard) if not is_owned)
    ranges = list(islice(unowned, RANGES_MAX + 1))
    if len(ranges) > RANGES_MAX:
        return None
    return OwnershipFilter(table.key_pattern, ranges, table.collection.default_collation, is_complete=True)
