"""The fields that a merger's part reads, because the shards need not return any others."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from shardwright.sharding.pipelines.field_paths import (
    WHOLE_DOCUMENT,
    expression_paths,
    first_component,
    is_exclusion,
    is_flag,
    is_nested,
    is_set,
    match_paths,
    projectable,
    sort_paths,
    without_covered,
)
from shardwright.sharding.pipelines.pipeline import Stage
from shardwright.sharding.pipelines.pushdown import is_too_deep
from shardwright.wire.rawbson import ARRAY, BOOL, OBJECT, STRING, Span, element, from_elements, index, spans

_TRUE: Final = b"\1"
_FALSE: Final = b"\0"
_ID: Final = b"_id"

_ALL_KNOWN: Final = frozenset(
    {"$bucket", "$bucketAuto", "$count", "$facet", "$group", "$replaceRoot", "$replaceWith", "$sortByCount"}
)
"""Stages whose results depend only on the fields that they name."""


def projection_of_needed(shards_part: tuple[Stage, ...], merger_part: tuple[Stage, ...]) -> Stage | None:
    """Build the ``$project`` for the end of the shards' part; None if the merger needs whole documents.

    As in mongos, it is also None if a stage of the shards' part has already limited the fields, or searches text.
    """
    if any(_is_exhaustive(stage) or _searches_text(stage) for stage in shards_part) or is_too_deep(merger_part):
        return None
    needed = _needed(merger_part)
    if needed is None:
        return None
    paths = without_covered(needed) or [_ID]
    fields = b"".join(element(path, BOOL, _TRUE) for path in paths)
    if not any(first_component(path) == _ID for path in paths):
        fields += element(_ID, BOOL, _FALSE)
    return Stage.parse(from_elements(element(b"$project", OBJECT, from_elements(fields))))


def _needed(stages: tuple[Stage, ...]) -> set[bytes] | None:
    """Return the paths that the results of some stages depend on; None if they depend on whole documents."""
    needed: set[bytes] = set()
    for stage in stages:
        reads = _READS.get(stage.name)
        if reads is None:
            return None
        needed.update(projectable(path) for path in reads(stage))
        if WHOLE_DOCUMENT in needed:
            return None
        if _is_exhaustive(stage):
            return needed
    return None


def _is_exhaustive(stage: Stage) -> bool:
    if stage.name == "$project":
        return stage.span[0] == OBJECT and not is_exclusion(stage.raw, stage.span[2])
    return stage.name in _ALL_KNOWN


def _searches_text(stage: Stage) -> bool:
    return stage.name == "$match" and b"$text\0" in stage.raw


def _nothing(_: Stage) -> Iterator[bytes]:
    yield from ()


def _expression(stage: Stage) -> Iterator[bytes]:
    """Treat the whole specification as an expression, because its other arguments are constants or names."""
    return expression_paths(stage.raw, stage.span)


def _of_match(stage: Stage) -> Iterator[bytes]:
    kind, _, start, _ = stage.span
    return match_paths(stage.raw, start) if kind == OBJECT else iter((WHOLE_DOCUMENT,))


def _of_sort(stage: Stage) -> Iterator[bytes]:
    kind, _, start, _ = stage.span
    return sort_paths(stage.raw, start) if kind == OBJECT else iter((WHOLE_DOCUMENT,))


def _of_projection(stage: Stage) -> Iterator[bytes]:
    kind, _, start, _ = stage.span
    if kind != OBJECT:
        yield WHOLE_DOCUMENT
        return
    if is_exclusion(stage.raw, start):
        return
    if _ID not in {name for name, _ in spans(stage.raw, start)}:
        yield _ID
    for name, span in spans(stage.raw, start):
        if not (name == _ID and is_flag(span) and not is_set(stage.raw, span)):
            yield from _of_field(stage.raw, name, span)


def _of_field(document: bytes, name: bytes, span: Span) -> Iterator[bytes]:
    if is_flag(span):
        yield name
    elif is_nested(document, span):
        for inner, inner_span in spans(document, span[2]):
            yield from _of_field(document, name + b"." + inner, inner_span)
    else:
        if b"." in name:
            # The computed value is set in each element of an array.
            yield first_component(name)
        yield from expression_paths(document, span)


def _of_added_fields(stage: Stage) -> Iterator[bytes]:
    kind, _, start, _ = stage.span
    if kind != OBJECT:
        yield WHOLE_DOCUMENT
        return
    for name, span in spans(stage.raw, start):
        if b"." in name or is_nested(stage.raw, span):
            yield first_component(name)
        yield from expression_paths(stage.raw, span)


def _of_unwind(stage: Stage) -> Iterator[bytes]:
    kind, _, start, _ = stage.span
    path = stage.span if kind == STRING else index(stage.raw, start).get(b"path") if kind == OBJECT else None
    return iter((WHOLE_DOCUMENT,)) if path is None else expression_paths(stage.raw, path)


def _of_lookup(stage: Stage) -> Iterator[bytes]:
    kind, _, start, _ = stage.span
    fields = index(stage.raw, start) if kind == OBJECT else {}
    local = fields.get(b"localField")
    if local is not None:
        yield _text(stage.raw, local)
    for name in (b"let", b"startWith"):
        if name in fields:
            yield from expression_paths(stage.raw, fields[name])
    yield from _where_it_is_put(stage, fields.get(b"as"))


def _where_it_is_put(stage: Stage, path: Span | None) -> Iterator[bytes]:
    text = b"" if path is None else _text(stage.raw, path)
    if path is None or b"." in text:
        yield first_component(text)


def _of_facet(stage: Stage) -> Iterator[bytes]:
    kind, _, start, _ = stage.span
    if kind != OBJECT:
        yield WHOLE_DOCUMENT
        return
    for _, (each_kind, _, pipeline, _) in spans(stage.raw, start):
        inner = _stages_at(stage.raw, pipeline) if each_kind == ARRAY else None
        needed = None if inner is None else _needed(inner)
        yield from needed if needed is not None else (WHOLE_DOCUMENT,)


def _of_window(stage: Stage) -> Iterator[bytes]:
    kind, _, start, _ = stage.span
    fields = index(stage.raw, start) if kind == OBJECT else {}
    if b"partitionBy" in fields:
        yield from expression_paths(stage.raw, fields[b"partitionBy"])
    by = fields.get(b"sortBy")
    if by is not None and by[0] == OBJECT:
        yield from sort_paths(stage.raw, by[2])
    output = fields.get(b"output")
    if output is None or output[0] != OBJECT:
        yield WHOLE_DOCUMENT
        return
    for name, span in spans(stage.raw, output[2]):
        if b"." in name:
            yield first_component(name)
        yield from expression_paths(stage.raw, span)


def _of_densify(stage: Stage) -> Iterator[bytes]:
    kind, _, start, _ = stage.span
    fields = index(stage.raw, start) if kind == OBJECT else {}
    field, by = fields.get(b"field"), fields.get(b"partitionByFields")
    yield WHOLE_DOCUMENT if field is None else _text(stage.raw, field)
    if by is not None and by[0] == ARRAY:
        for _, each in spans(stage.raw, by[2]):
            yield _text(stage.raw, each)


def _of_fill(stage: Stage) -> Iterator[bytes]:
    yield from _of_window(stage)
    fields = index(stage.raw, stage.span[2]) if stage.span[0] == OBJECT else {}
    by, output = fields.get(b"partitionByFields"), fields.get(b"output")
    if by is not None and by[0] == ARRAY:
        for _, each in spans(stage.raw, by[2]):
            yield _text(stage.raw, each)
    if output is not None and output[0] == OBJECT:
        yield from (name for name, _ in spans(stage.raw, output[2]))


def _text(document: bytes, span: Span) -> bytes:
    """Return a string argument, `WHOLE_DOCUMENT` for any other value."""
    kind, _, start, end = span
    return document[start + 4 : end - 1] if kind == STRING else WHOLE_DOCUMENT


def _stages_at(document: bytes, start: int) -> tuple[Stage, ...] | None:
    stages = []
    for _, (kind, _, each, end) in spans(document, start):
        raw = document[each:end]
        if kind != OBJECT or len(list(spans(raw))) != 1:
            return None
        stages.append(Stage.parse(raw))
    return tuple(stages)


_READS: Final[Mapping[str, Callable[[Stage], Iterator[bytes]]]] = {
    **dict.fromkeys(("$limit", "$skip", "$count", "$sample", "$unionWith", "$unset"), _nothing),
    **dict.fromkeys(("$bucket", "$bucketAuto", "$group", "$replaceRoot", "$replaceWith", "$sortByCount"), _expression),
    **dict.fromkeys(("$addFields", "$set"), _of_added_fields),
    **dict.fromkeys(("$lookup", "$graphLookup"), _of_lookup),
    **dict.fromkeys(("$setWindowFields", "$_internalSetWindowFields"), _of_window),
    "$densify": _of_densify,
    "$facet": _of_facet,
    "$fill": _of_fill,
    "$match": _of_match,
    "$project": _of_projection,
    "$sort": _of_sort,
    "$unwind": _of_unwind,
}
"""The paths that each stage reads. A stage that is not listed may read whole documents."""
