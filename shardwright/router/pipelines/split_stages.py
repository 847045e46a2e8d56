"""Stages that are divided between shards and merger: ``$group``, ``$setWindowFields`` and ``$fill``.

A ``$group`` runs on the shards unchanged. They return partial states, because the command has ``needsMerge``. The
merger's part groups by ``$$ROOT._id``, and each accumulator's operand is the field with its partial states.

The shards sort for a ``$setWindowFields``, and the merger computes it. mongod implements it as a ``$sort`` and an
internal stage that reads sorted documents one by one. The merger gets the internal stage, because the client's stage
would sort again. Documents are sorted by partition first. A partition that is not a plain field is computed into a
temporary field.

A ``$fill`` is replaced by the simpler stages that mongod, too, replaces it by.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from shardwright.sharding.pipelines.field_paths import first_component, overlap, projectable
from shardwright.sharding.pipelines.pipeline import Stage
from shardwright.wire.rawbson import (
    ARRAY,
    BOOL,
    DOUBLE,
    INT32,
    INT64,
    OBJECT,
    STRING,
    Span,
    decode_value,
    element,
    encode_document,
    encode_elements,
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
"""The accumulators, each with the operand's field that the partial states replace; None for the whole operand."""


def merging_group(group: bytes) -> bytes | None:
    """Return the merger's part of a ``$group``.

    Returns:
        The raw stage; None if mongod does not accept the specification.
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
    """Build the stage that finishes partial states from its accumulators, a raw document."""
    specification = (
        element(b"_id", STRING, string_value(b"$$ROOT._id")) + accumulated[4:-1] + element(b"$doingMerge", BOOL, b"\1")
    )
    return from_elements(element(b"$group", OBJECT, from_elements(specification)))


def merging_accumulators(output: bytes) -> bytes | None:
    """Return the merger's part of accumulators, a raw document; None if mongod does not accept them."""
    fields = list(spans(output))
    parts = list(_accumulated(output, fields))
    return from_elements(b"".join(parts)) if len(parts) == len(fields) and all(parts) else None


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
"""The default accumulators of ``$bucket`` and ``$sortByCount``."""


_FIELDS: Final = frozenset({b"output", b"sortBy", b"partitionBy"})
_NUMBERS: Final = frozenset({INT32, INT64, DOUBLE})


@dataclass(frozen=True, slots=True)
class SplitWindow:
    """The parts of a split ``$setWindowFields``.

    Attributes:
        shards: stages for each shard, the last one a ``$sort``.
        sort: the order of that ``$sort``.
        merger: stages for the merger.
    """

    shards: tuple[Stage, ...]
    sort: Mapping[str, int]
    merger: tuple[Stage, ...]


def split_window(stage: Stage) -> SplitWindow | None:
    """Split a ``$setWindowFields``.

    Return None if the merger must run it whole, because it sorts nothing or mongod will refuse it.
    """
    kind, _, start, end = stage.span
    fields = index(stage.raw, start) if kind == OBJECT else {}
    output = fields.get(b"output")
    if output is None or not fields.keys() <= _FIELDS or not _are_separate_outputs(stage.raw, output):
        return None
    order = sort_order(stage.raw, fields.get(b"sortBy"))
    partition = fields.get(b"partitionBy")
    if order is None or (partition is None and not order):
        return None
    if partition is None:
        return SplitWindow((_sort(order),), order, (_window(stage.raw[start:end]),))
    path = _path(stage.raw, partition)
    if path is not None and not overlap((path.encode(),), (name.encode() for name in order)):
        order = {path: 1, **order}
        return SplitWindow((_sort(order),), order, (_window(stage.raw[start:end]),))
    return _with_computed_partition(stage, partition, order)


def sort_order(document: bytes, span: Span | None) -> dict[str, int] | None:
    """Return the order of a ``sortBy``, empty without one; None if mongod refuses it."""
    if span is None:
        return {}
    order: dict[str, int] = {}
    if span[0] != OBJECT:
        return None
    for name, direction in spans(document, span[2]):
        way = decode_value(document, direction) if direction[0] in _NUMBERS else 0
        path = _text(name)
        if way not in (1, -1) or path is None or path in order:
            return None
        order[path] = int(way)
    return order


def are_separate(paths: list[bytes]) -> bool:
    """Whether no path equals another one or is inside it."""
    return len({first_component(path) for path in paths}) == len(paths)


def _are_separate_outputs(document: bytes, output: Span) -> bool:
    return output[0] == OBJECT and are_separate([name for name, _ in spans(document, output[2])])


def _path(document: bytes, span: Span) -> str | None:
    """Return the path that an expression consists of; None for other expressions."""
    kind, _, start, end = span
    text = document[start + 4 : end - 1] if kind == STRING else b""
    return _text(text[1:]) if text.startswith(b"$") else None


def _text(path: bytes) -> str | None:
    """Decode a path, None if mongod does not accept it."""
    if not path or projectable(path) != path:
        return None
    try:
        return path.decode()
    except UnicodeDecodeError:
        return None


def _with_computed_partition(stage: Stage, partition: Span, order: Mapping[str, int]) -> SplitWindow:
    name = uuid4().hex
    kind, _, start, end = partition
    # Without $let, an object would be nested fields to add, not an expression.
    let = encode_elements({"vars": {}}) + element(b"in", kind, stage.raw[start:end])
    computed = element(name.encode(), OBJECT, from_elements(element(b"$let", OBJECT, from_elements(let))))
    adding = _stage(b"$addFields", from_elements(computed))
    fields = index(stage.raw, stage.span[2])
    specification = encode_elements({"partitionBy": f"${name}"}) + b"".join(
        stage.raw[at:until] for field, (_, at, _, until) in fields.items() if field != b"partitionBy"
    )
    order = {name: 1, **order}
    removing = _stage(b"$project", from_elements(encode_elements({name: False})))
    return SplitWindow((adding, _sort(order)), order, (_window(from_elements(specification)), removing))


def _sort(order: Mapping[str, int]) -> Stage:
    by = b"".join(element(name.encode(), INT32, way.to_bytes(4, "little", signed=True)) for name, way in order.items())
    return _stage(b"$sort", from_elements(by))


def _window(specification: bytes) -> Stage:
    return _stage(b"$_internalSetWindowFields", specification)


def _stage(name: bytes, specification: bytes) -> Stage:
    return Stage.parse(from_elements(element(name, OBJECT, specification)))


_METHODS: Final = {b"locf": b"$locf", b"linear": b"$linearFill"}
_Output = tuple[bytes, bytes, Span]


def fill_stages(stage: Stage) -> tuple[Stage, ...]:
    """Replace a ``$fill`` by a ``$setWindowFields`` for its methods and an ``$addFields`` for its values.

    Any other stage, and a ``$fill`` that mongod will refuse, is returned unchanged.
    """
    kind, _, start, end = stage.span
    if stage.name != "$fill" or kind != OBJECT:
        return (stage,)
    specification = stage.raw[start:end]
    fields = index(specification)
    partition = _partition(specification, fields)
    outputs = _outputs(specification, fields.get(b"output"))
    order = sort_order(specification, fields.get(b"sortBy"))
    if partition is None or order is None or not outputs:
        return (stage,)
    methods = [(field, specification[span[2] + 4 : span[3] - 1]) for field, name, span in outputs if name == b"method"]
    values = [(field, span) for field, name, span in outputs if name == b"value"]
    if any(way not in _METHODS for _, way in methods) or (
        any(way == b"linear" for _, way in methods) and len(order) != 1
    ):
        return (stage,)
    stages = []
    if methods:
        sorting = fields.get(b"sortBy")
        by = b"" if sorting is None else specification[sorting[1] : sorting[3]]
        stages.append(_filling_window(partition + by, methods))
    if values:
        stages.append(_values(specification, values))
    return tuple(stages)


def _partition(document: bytes, fields: dict[bytes, Span]) -> bytes | None:
    """Return the element ``partitionBy``, empty without a partition; None if mongod refuses the partition."""
    if not fields.keys() <= {b"output", b"sortBy", b"partitionBy", b"partitionByFields"}:
        return None
    by, names = fields.get(b"partitionBy"), fields.get(b"partitionByFields")
    if by is not None:
        return document[by[1] : by[3]] if names is None and by[0] == OBJECT else None
    if names is None:
        return b""
    if names[0] != ARRAY:
        return None
    paths = [_string_at(document, each) for _, each in spans(document, names[2])]
    if not all(path and b"." not in path and projectable(path) == path for path in paths) or not are_separate(paths):
        return None
    expression = b"".join(element(path, STRING, string_value(b"$" + path)) for path in paths)
    return element(b"partitionBy", OBJECT, from_elements(expression)) if paths else b""


def _outputs(document: bytes, output: Span | None) -> list[_Output]:
    """Return each filled field's path, ``method`` or ``value``, and its span. Empty if mongod refuses any."""
    if output is None or output[0] != OBJECT:
        return []
    outputs: list[_Output] = []
    for field, (kind, _, start, _) in spans(document, output[2]):
        given = list(spans(document, start)) if kind == OBJECT else []
        if len(given) != 1 or projectable(field) != field:
            return []
        [(name, span)] = given
        if name not in (b"method", b"value") or (name == b"method" and span[0] != STRING):
            return []
        outputs.append((field, name, span))
    return outputs if are_separate([field for field, _, _ in outputs]) else []


def _filling_window(rest: bytes, methods: list[tuple[bytes, bytes]]) -> Stage:
    filled = b"".join(
        element(field, OBJECT, from_elements(element(_METHODS[way], STRING, string_value(b"$" + field))))
        for field, way in methods
    )
    specification = rest + element(b"output", OBJECT, from_elements(filled))
    return _stage(b"$setWindowFields", from_elements(specification))


def _values(document: bytes, values: list[tuple[bytes, Span]]) -> Stage:
    added = b"".join(
        element(field, OBJECT, from_elements(element(b"$ifNull", ARRAY, _either(field, document, span))))
        for field, span in values
    )
    return _stage(b"$addFields", from_elements(added))


def _either(field: bytes, document: bytes, span: Span) -> bytes:
    kind, _, start, end = span
    return from_elements(element(b"0", STRING, string_value(b"$" + field)) + element(b"1", kind, document[start:end]))


def _string_at(document: bytes, span: Span) -> bytes:
    kind, _, start, end = span
    return document[start + 4 : end - 1] if kind == STRING else b""
