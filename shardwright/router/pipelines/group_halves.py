"""``$group`` in two halves: the shards' partial states, and the merger that finishes them.

The shards run the stage as it is and return partial states, because the command says ``needsMerge``. The merger's half
groups by ``$$ROOT._id``, and each accumulator's operand is the field with its partial states.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from shardwright.wire.rawbson import (
    BOOL,
    OBJECT,
    STRING,
    Span,
    element,
    encode_document,
    from_elements,
    index,
    spans,
    string_value,
    with_value,
)

_PARTIAL: Final[Mapping[bytes, bytes | None]] = {
    **dict.fromkeys((b"$addToSet", b"$avg", b"$first", b"$last", b"$max", b"$mergeObjects", b"$min", b"$push")),
    **dict.fromkeys((b"$stdDevPop", b"$stdDevSamp", b"$sum")),
    **dict.fromkeys((b"$bottom", b"$bottomN", b"$top", b"$topN"), b"output"),
    **dict.fromkeys((b"$firstN", b"$lastN", b"$maxN", b"$minN"), b"input"),
    b"$accumulator": b"accumulateArgs",
    b"$_internalJsReduce": b"data",
}
"""The accumulators, each with the field of its operand that the partial states replace; None for the whole operand."""


def merging_group(group: bytes) -> bytes | None:
    """The merger's half of a ``$group``.

    Args:
        group: the raw specification.

    Returns:
        The raw stage; None if the specification is not one that mongod accepts.
    """
    fields = list(spans(group))
    names = {name for name, _ in fields}
    if b"_id" not in names or len(names) != len(fields):
        return None
    accumulated = from_elements(b"".join(field for field in _accumulated(group, fields) if field))
    if len(list(spans(accumulated))) != len(fields) - 1:
        return None
    return merging_stage(accumulated)


def merging_stage(accumulated: bytes) -> bytes:
    """The stage that finishes partial states, given its accumulators as a raw document."""
    specification = (
        element(b"_id", STRING, string_value(b"$$ROOT._id")) + accumulated[4:-1] + element(b"$doingMerge", BOOL, b"\1")
    )
    return from_elements(element(b"$group", OBJECT, from_elements(specification)))


def merging_accumulators(output: bytes) -> bytes | None:
    """The merger's half of accumulators, a raw document; None if mongod does not accept them."""
    fields = list(spans(output))
    halves = list(_accumulated(output, fields))
    return from_elements(b"".join(halves)) if len(halves) == len(fields) and all(halves) else None


def _accumulated(document: bytes, fields: list[tuple[bytes, Span]]) -> Iterator[bytes]:
    for name, span in fields:
        if name != b"_id":
            yield _merging_accumulator(name, document, span) or b""


def _merging_accumulator(name: bytes, document: bytes, span: Span) -> bytes | None:
    if span[0] != OBJECT or b"." in name or name.startswith(b"$"):
        return None
    inner = document[span[2] : span[3]]
    operators = index(inner)
    if len(operators) != 1:
        return None
    operator, operand = next(iter(operators.items()))
    state = string_value(b"$$ROOT." + name)
    if operator == b"$count":
        return element(name, OBJECT, from_elements(element(b"$sum", STRING, state)))
    if operator not in _PARTIAL:
        return None
    replaced = _PARTIAL[operator]
    if replaced is None:
        return element(name, OBJECT, from_elements(element(operator, STRING, state)))
    if operand[0] != OBJECT:
        return None
    arguments = inner[operand[2] : operand[3]]
    merged = from_elements(
        b"".join(
            element(each, STRING, state) if each == replaced else arguments[start:end]
            for each, (_, start, _, end) in spans(arguments)
        )
    )
    if replaced not in index(merged):
        return None
    return element(name, OBJECT, with_value(inner, operand, merged))


ONE_PER_GROUP: Final = encode_document({"count": {"$sum": 1}})
"""The accumulators of ``$bucket`` and ``$sortByCount`` where none are given."""
