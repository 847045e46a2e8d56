"""A ``$group`` behind a join in two steps: its expressions, which need the joined document, and the groups. No I/O.

The mongod that joins evaluates the expressions too, so that only their values leave it: a joined document may be larger
than a document that passes through the router can be.
"""

from typing import Final

from shardwright.router.reads.pipeline import Stage
from shardwright.wire.rawbson import ARRAY, OBJECT, STRING, Span, element, from_elements, index, spans, string_value

_OF_ONE_VALUE: Final = frozenset(
    {
        *(b"$addToSet", b"$avg", b"$first", b"$last", b"$max", b"$mergeObjects", b"$min", b"$push"),
        *(b"$stdDevPop", b"$stdDevSamp", b"$sum"),
    }
)
"""The accumulators whose operand is an expression."""

_ONE_FOR_ALL: Final = (b"$$NOW", b"$$CLUSTER_TIME")
"""Variables that would have other values in another command."""

_GROUP: Final = b"g"
_OPERANDS: Final = b"a"


def narrowed(stage: Stage) -> tuple[bytes, Stage] | None:
    """A ``$replaceWith`` that evaluates the expressions of a ``$group``, and the ``$group`` of their values.

    Args:
        stage: a ``$group`` that mongod accepts.

    Returns:
        None if the stage has to stay as it is.
    """
    kind, _, start, end = stage.span
    if kind != OBJECT or any(variable in stage.raw for variable in _ONE_FOR_ALL):
        return None
    specification = stage.raw[start:end]
    evaluated: list[bytes] = []
    grouping: list[bytes] = []
    for number, (name, span) in enumerate(spans(specification)):
        if name == b"_id":
            evaluated.append(element(_GROUP, span[0], specification[span[2] : span[3]]))
            grouping.append(_group(specification, span))
            continue
        accumulator = _operator(specification, span)
        if accumulator is None:
            return None
        operator, kind, operand = accumulator
        if kind in (STRING, OBJECT) and operator in _OF_ONE_VALUE:
            evaluated.append(element(b"%s%d" % (_OPERANDS, number), kind, operand))
            kind, operand = STRING, string_value(b"$%s%d" % (_OPERANDS, number))
        grouping.append(element(name, OBJECT, from_elements(element(operator, kind, operand))))
    values = element(b"$replaceWith", OBJECT, from_elements(b"".join(evaluated)))
    group = element(b"$group", OBJECT, from_elements(b"".join(grouping)))
    return from_elements(values), Stage.parse(from_elements(group))


def _group(specification: bytes, span: Span) -> bytes:
    """The ``_id`` of groups of evaluated values; of a document field by field: one that is missing may become null."""
    if span[0] == OBJECT:
        fields = index(specification[span[2] : span[3]])
        if not any(name.startswith(b"$") for name in fields):
            paths = (element(name, STRING, string_value(b"$%s.%s" % (_GROUP, name))) for name in fields)
            return element(b"_id", OBJECT, from_elements(b"".join(paths)))
    return element(b"_id", STRING, string_value(b"$" + _GROUP))


def _operator(specification: bytes, span: Span) -> tuple[bytes, int, bytes] | None:
    """An accumulator's operator with its raw operand; None for one that cannot be narrowed."""
    if span[0] != OBJECT:
        return None
    operators = list(spans(specification[span[2] : span[3]]))
    if len(operators) != 1:
        return None
    name, (kind, _, start, end) = operators[0]
    if name != b"$count" and (name not in _OF_ONE_VALUE or kind == ARRAY):
        return None
    return name, kind, specification[span[2] : span[3]][start:end]
