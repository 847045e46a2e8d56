"""Aggregation expressions that compare a document's shard key as routing tables do.

``$expr`` compares values of all types in BSON order, which is the order of shard keys, with three exceptions that are
corrected here:

- a missing field counts as null;
- a hashed field counts as its hash, which ``$toHashedIndexKey`` computes;
- strings are compared under the operation's collation, whereas shard keys are compared byte by byte. Field names are
  never collated. So if a collation other than the simple one is in force, a string ``s`` is compared as the document
  ``{s: 0}``, and embedded documents and arrays are compared part by part along the bound.

All of this was observed on mongod; the tests compare it with `sharding.key_order`.
"""

from typing import Any, Final, TypeAlias

from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.shard_key_field import ShardKeyField
from shardwright.wire import rawbson
from shardwright.wire.rawbson import Span, raw_document, wrap_value
from shardwright.wire.type_names import type_name

Expression: TypeAlias = Any
"""A BSON value that mongod evaluates."""

_STRINGS: Final = (rawbson.STRING, rawbson.SYMBOL)
_NUMBERS: Final = (rawbson.INT32, rawbson.INT64, rawbson.DOUBLE, rawbson.DECIMAL128)
_TYPES_OF_ONE_RANK: Final = (_STRINGS, _NUMBERS)
_ESCAPES: Final = (("\x01", "\x01\x02"), ("\x00", "\x01\x01"))
"""Field names cannot contain NUL. These escapes preserve the order of strings."""


def shard_key(pattern: ShardKeyPattern) -> Expression:
    """A document's shard key, as an array of values."""
    return [_field_value(field) for field in pattern.fields]


def is_below(key: Expression, bound: bytes, *, is_collated: bool) -> Expression:
    """Whether a shard key sorts before a bound.

    Args:
        key: an expression with the value of `shard_key`.
        bound: a shard key document.
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
    """-1, 0 or 1 if a value is less than, equal to or greater than the constant; strings are compared as bytes."""
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
    """-1 if an array ends before a position, else 0."""
    return {"$cond": [{"$gt": [{"$size": array}, position]}, 0, -1]}


def _first_difference(signs: list[Expression]) -> Expression:
    """The first sign that is not 0; 0 if all are."""
    return {"$cmp": [signs, [0] * len(signs)]}


def _as_name(text: Expression) -> Expression:
    """A document whose only field has a string as its name."""
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
    """A string or a symbol as a string; only symbols are converted, since the conversion fails on invalid UTF-8."""
    return {"$cond": [{"$eq": [{"$type": value}, "symbol"]}, {"$substrBytes": [value, 0, -1]}, value]}


def _has_type_of(value: Expression, kind: int) -> Expression:
    """Whether a value has a type, or one that is compared with it by value."""
    kinds = next((kinds for kinds in _TYPES_OF_ONE_RANK if kind in kinds), (kind,))
    return {"$in": [{"$type": value}, [type_name(each) for each in kinds]]}


def _smallest(kind: int) -> Expression:
    """The smallest value of a type, against which values of other types are compared by type."""
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
