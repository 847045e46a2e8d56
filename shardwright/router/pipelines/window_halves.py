"""``$setWindowFields`` in two halves: the shards sort, and the merger computes. Likewise `fill_stages`.

mongod makes a ``$sort`` of it, and an internal stage that reads sorted documents as they come. The merger gets this
stage, since it would sort once more for what the client wrote. Documents are sorted by partition first; a partition
that is not just a field is computed into a temporary one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from shardwright.router.pipelines.paths import first_component, overlap, projectable
from shardwright.router.reads.pipeline import Stage
from shardwright.wire.rawbson import (
    DOUBLE,
    INT32,
    INT64,
    OBJECT,
    STRING,
    Span,
    decode_value,
    element,
    encode_elements,
    from_elements,
    index,
    spans,
)

_FIELDS: Final = frozenset({b"output", b"sortBy", b"partitionBy"})
_NUMBERS: Final = frozenset({INT32, INT64, DOUBLE})


@dataclass(frozen=True, slots=True)
class WindowHalves:
    """The halves of such a stage.

    Attributes:
        shards: stages for each shard, the last one a ``$sort``.
        sort: the order of the last.
        merger: stages for the merger.
    """

    shards: tuple[Stage, ...]
    sort: Mapping[str, int]
    merger: tuple[Stage, ...]


def window_halves(stage: Stage) -> WindowHalves | None:
    """The halves of a ``$setWindowFields``.

    None if the merger has to run it whole, because it sorts nothing or mongod is going to refuse it.
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
        return WindowHalves((_sort(order),), order, (_window(stage.raw[start:end]),))
    path = _path(stage.raw, partition)
    if path is not None and not overlap((path.encode(),), (name.encode() for name in order)):
        order = {path: 1, **order}
        return WindowHalves((_sort(order),), order, (_window(stage.raw[start:end]),))
    return _with_computed_partition(stage, partition, order)


def sort_order(document: bytes, span: Span | None) -> dict[str, int] | None:
    """The order that a ``sortBy`` asks for, empty if there is none; None if mongod refuses it."""
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
    """Whether no path is another one or inside it."""
    return len({first_component(path) for path in paths}) == len(paths)


def _are_separate_outputs(document: bytes, output: Span) -> bool:
    return output[0] == OBJECT and are_separate([name for name, _ in spans(document, output[2])])


def _path(document: bytes, span: Span) -> str | None:
    """The path that an expression is; None if it is anything else."""
    kind, _, start, end = span
    text = document[start + 4 : end - 1] if kind == STRING else b""
    return _text(text[1:]) if text.startswith(b"$") else None


def _text(path: bytes) -> str | None:
    """A path as text, None if mongod does not accept it."""
    if not path or projectable(path) != path:
        return None
    try:
        return path.decode()
    except UnicodeDecodeError:
        return None


def _with_computed_partition(stage: Stage, partition: Span, order: Mapping[str, int]) -> WindowHalves:
    name = uuid4().hex
    kind, _, start, end = partition
    # Without $let, an object would name nested fields to add instead of being an expression.
    let = encode_elements({"vars": {}}) + element(b"in", kind, stage.raw[start:end])
    computed = element(name.encode(), OBJECT, from_elements(element(b"$let", OBJECT, from_elements(let))))
    adding = _stage(b"$addFields", from_elements(computed))
    fields = index(stage.raw, stage.span[2])
    specification = encode_elements({"partitionBy": f"${name}"}) + b"".join(
        stage.raw[at:until] for field, (_, at, _, until) in fields.items() if field != b"partitionBy"
    )
    order = {name: 1, **order}
    removing = _stage(b"$project", from_elements(encode_elements({name: False})))
    return WindowHalves((adding, _sort(order)), order, (_window(from_elements(specification)), removing))


def _sort(order: Mapping[str, int]) -> Stage:
    by = b"".join(element(name.encode(), INT32, way.to_bytes(4, "little", signed=True)) for name, way in order.items())
    return _stage(b"$sort", from_elements(by))


def _window(specification: bytes) -> Stage:
    return _stage(b"$_internalSetWindowFields", specification)


def _stage(name: bytes, specification: bytes) -> Stage:
    return Stage.parse(from_elements(element(name, OBJECT, specification)))
