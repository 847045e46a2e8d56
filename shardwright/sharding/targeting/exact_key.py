"""Filters that fix one shard key, or one ``_id``, by equality alone.

Upserts, single deletes and ``findAndModify`` need that. The accepted forms are exactly MongoDB 6.0's: top-level
equality, ``$eq``, ``$in`` and ``$all`` of one value, inside of ``$and`` and of ``$or`` with one branch. A path that is
fixed twice, even to the same value, counts as conflicting. All of it was compared with mongod's own routing code.
"""

from collections.abc import Iterator
from typing import Final, TypeAlias

from shardwright.sharding.key_order import encode_value
from shardwright.sharding.shard_key import ShardKeyPattern, descend, refuse_deep_nesting
from shardwright.sharding.targeting.filters import FILTER_DEPTH_MAX, is_operator_object
from shardwright.sharding.targeting.values import is_collatable
from shardwright.wire import rawbson
from shardwright.wire.rawbson import Span

_Equality: TypeAlias = tuple[bytes, Span]

_ID: Final = ShardKeyPattern.from_mapping({"_id": 1})

_UNUSABLE: Final = frozenset({rawbson.ARRAY, rawbson.REGEX, rawbson.UNDEFINED})


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
