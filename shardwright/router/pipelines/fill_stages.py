"""The simpler stages that mongod makes of a ``$fill``."""

from typing import Final

from shardwright.router.pipelines.paths import projectable
from shardwright.router.pipelines.window_halves import are_separate, sort_order
from shardwright.router.reads.pipeline import Stage
from shardwright.wire.rawbson import ARRAY, OBJECT, STRING, Span, element, from_elements, index, spans

_METHODS: Final = {b"locf": b"$locf", b"linear": b"$linearFill"}
_Output = tuple[bytes, bytes, Span]


def fill_stages(stage: Stage) -> tuple[Stage, ...]:
    """What a ``$fill`` is made into: a ``$setWindowFields`` for its methods and an ``$addFields`` for its values.

    Any other stage, and a ``$fill`` that mongod is going to refuse, stays as it is.
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
        stages.append(_window(partition + by, methods))
    if values:
        stages.append(_values(specification, values))
    return tuple(stages)


def _partition(document: bytes, fields: dict[bytes, Span]) -> bytes | None:
    """The element ``partitionBy``, empty if there is none; None if there is what mongod refuses."""
    if not fields.keys() <= {b"output", b"sortBy", b"partitionBy", b"partitionByFields"}:
        return None
    by, names = fields.get(b"partitionBy"), fields.get(b"partitionByFields")
    if by is not None:
        return document[by[1] : by[3]] if names is None and by[0] == OBJECT else None
    if names is None:
        return b""
    if names[0] != ARRAY:
        return None
    paths = [_text(document, each) for _, each in spans(document, names[2])]
    if not all(path and b"." not in path and projectable(path) == path for path in paths) or not are_separate(paths):
        return None
    expression = b"".join(element(path, STRING, _string(b"$" + path)) for path in paths)
    return element(b"partitionBy", OBJECT, from_elements(expression)) if paths else b""


def _outputs(document: bytes, output: Span | None) -> list[_Output]:
    """For each field that is filled: its path, ``method`` or ``value``, and that. Empty if mongod refuses some."""
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


def _window(rest: bytes, methods: list[tuple[bytes, bytes]]) -> Stage:
    filled = b"".join(
        element(field, OBJECT, from_elements(element(_METHODS[way], STRING, _string(b"$" + field))))
        for field, way in methods
    )
    specification = rest + element(b"output", OBJECT, from_elements(filled))
    return Stage.parse(from_elements(element(b"$setWindowFields", OBJECT, from_elements(specification))))


def _values(document: bytes, values: list[tuple[bytes, Span]]) -> Stage:
    added = b"".join(
        element(field, OBJECT, from_elements(element(b"$ifNull", ARRAY, _either(field, document, span))))
        for field, span in values
    )
    return Stage.parse(from_elements(element(b"$addFields", OBJECT, from_elements(added))))


def _either(field: bytes, document: bytes, span: Span) -> bytes:
    kind, _, start, end = span
    return from_elements(element(b"0", STRING, _string(b"$" + field)) + element(b"1", kind, document[start:end]))


def _text(document: bytes, span: Span) -> bytes:
    kind, _, start, end = span
    return document[start + 4 : end - 1] if kind == STRING else b""


def _string(text: bytes) -> bytes:
    return (len(text) + 1).to_bytes(4, "little") + text + b"\0"
