"""Dotted paths, as bytes, that stages read and write: expressions, the conditions of a ``$match``, projections."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from shardwright.sharding.pipelines.pipeline import Stage
from shardwright.wire.rawbson import (
    ARRAY,
    BOOL,
    DECIMAL128,
    DOUBLE,
    INT32,
    INT64,
    OBJECT,
    REGEX,
    STRING,
    Span,
    array_of_documents,
    decode_value,
    element,
    from_elements,
    index,
    spans,
)

WHOLE_DOCUMENT: Final = b""
"""Path of the document itself."""

_COMPONENTS_MAX: Final = 50


def first_component(path: bytes) -> bytes:
    """Return the top-level field that a path begins with."""
    return path.partition(b".")[0]


def overlap(one: Iterable[bytes], other: Iterable[bytes]) -> bool:
    """Whether some path of each set begins with the same top-level field.

    Finer distinctions would be wrong for stages that replace a value other than an object on the way to a path.
    """
    return not {first_component(path) for path in one}.isdisjoint(first_component(path) for path in other)


def projectable(path: bytes) -> bytes:
    """Return the longest prefix of a path that a ``$project`` can include; `WHOLE_DOCUMENT` if there is none.

    A number in the path of a query may mean a position in an array, but projections support only field names.
    """
    components = path.split(b".")
    end = 0
    while end < len(components) and _is_plain(components[end], is_top=end == 0):
        end += 1
    return b".".join(components[: min(end, _COMPONENTS_MAX)])


def without_covered(paths: Iterable[bytes]) -> list[bytes]:
    """Drop paths below other paths, and sort the rest."""
    kept: list[bytes] = []
    for path in sorted(set(paths), key=lambda path: path.split(b".")):
        if not kept or not path.startswith(kept[-1] + b"."):
            kept.append(path)
    return kept


def _is_plain(component: bytes, *, is_top: bool) -> bool:
    is_name = bool(component) and not component.startswith(b"$") and b"\0" not in component
    return is_name and (is_top or not component.isdigit())


_CONSTANTS: Final = frozenset({b"$literal", b"$const", b"$meta"})
_OF_DOCUMENT: Final = (b"ROOT", b"CURRENT")
_SORTING: Final = frozenset({b"$bottom", b"$bottomN", b"$top", b"$topN"})
"""Accumulators whose ``sortBy`` names paths."""


def expression_paths(document: bytes, span: Span) -> Iterator[bytes]:
    """Yield the paths that the expression at a span reads; `WHOLE_DOCUMENT` if it may read anything.

    An accumulator or a window function counts as an expression. Paths of the values of variables are included, so
    expressions that redefine ``CURRENT`` read no other paths.
    """
    kind, _, start, end = span
    if kind == STRING:
        yield from _path_of(document[start + 4 : end - 1])
    elif kind == ARRAY:
        for _, each in spans(document, start):
            yield from expression_paths(document, each)
    elif kind == OBJECT:
        yield from _paths_in_object(document, start)


def sort_paths(document: bytes, start: int) -> Iterator[bytes]:
    """Yield the paths that a sort specification names; ``$meta`` reads no field."""
    for name, (kind, _, _, _) in spans(document, start):
        if kind != OBJECT:
            yield name


def _path_of(text: bytes) -> Iterator[bytes]:
    if text.startswith(b"$$"):
        variable, _, path = text[2:].partition(b".")
        if variable in _OF_DOCUMENT:
            yield path
    elif text.startswith(b"$"):
        yield text[1:]


def _paths_in_object(document: bytes, start: int) -> Iterator[bytes]:
    for name, span in spans(document, start):
        if name in _CONSTANTS:
            continue
        if (name == b"$getField" and not _names(document, span, b"input")) or name.startswith(b"$_internal"):
            yield WHOLE_DOCUMENT
        if name in _SORTING and span[0] == OBJECT:
            for argument, (kind, _, by, _) in spans(document, span[2]):
                if argument == b"sortBy" and kind == OBJECT:
                    yield from sort_paths(document, by)
        yield from expression_paths(document, span)


def _names(document: bytes, span: Span, field: bytes) -> bool:
    return span[0] == OBJECT and any(name == field for name, _ in spans(document, span[2]))


_LOGICAL: Final = frozenset({b"$and", b"$nor", b"$or"})
_COMPARISONS: Final = frozenset({b"$eq", b"$gt", b"$gte", b"$in", b"$lt", b"$lte", b"$ne", b"$nin"})

_FIXED: Final = re.compile(
    rb"\$(?:text|where|near|nearSphere|geoNear|comment|sampleRate|jsonSchema|rand|function|_internal\w+|always\w+)\0"
)
"""Operators that keep a ``$match`` in its place: it has to be first, differs from call to call, or is internal."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One of the conditions that a ``$match`` combines with "and".

    Attributes:
        paths: the paths that it reads, `WHOLE_DOCUMENT` if anything.
        field: its path, if it is about a single one.
    """

    raw: bytes
    paths: frozenset[bytes]
    field: bytes | None = None

    @classmethod
    def of(cls, raw: bytes) -> "Condition":
        """Analyse a filter with one element."""
        [name] = index(raw)
        return cls(raw, frozenset(match_paths(raw, 0)), None if name.startswith(b"$") else name)

    @property
    def compares(self) -> bool:
        """Whether it compares a field by value, so that it gives the same result for all equal values."""
        [(_, span)] = spans(self.raw)
        if self.field is None or span[0] == REGEX:
            return False
        operators = index(self.raw, span[2]) if span[0] == OBJECT else {}
        if not any(name.startswith(b"$") for name in operators):
            return True
        return all(name in _COMPARISONS for name in operators) and not _has_regex(self.raw, span)

    def renamed(self, field: bytes) -> "Condition":
        """Return the same condition about another path; it has to be about one."""
        [(_, (kind, _, start, end))] = spans(self.raw)
        return Condition(from_elements(element(field, kind, self.raw[start:end])), frozenset({field}), field)


def match_paths(document: bytes, start: int) -> Iterator[bytes]:
    """Yield the paths that the filter at an offset reads; `WHOLE_DOCUMENT` if it may read anything."""
    for name, (kind, element_start, value, end) in spans(document, start):
        if name in _LOGICAL and kind == ARRAY:
            for _, (inner_kind, _, inner, _) in spans(document, value):
                if inner_kind == OBJECT:
                    yield from match_paths(document, inner)
        elif name == b"$expr":
            yield from expression_paths(document, (kind, element_start, value, end))
        elif name.startswith(b"$"):
            yield WHOLE_DOCUMENT
        else:
            yield name


def conditions(stage: Stage) -> list[Condition] | None:
    """Split a ``$match`` into its conditions; None if it has to stay in its place."""
    kind, _, start, _ = stage.span
    if kind != OBJECT or _FIXED.search(stage.raw) is not None:
        return None
    return list(_conditions(stage.raw, start))


def match_stage(parts: list[Condition]) -> Stage:
    """Build a ``$match`` that requires all of some conditions."""
    raw = parts[0].raw
    if len(parts) > 1:
        raw = from_elements(element(b"$and", ARRAY, array_of_documents([part.raw for part in parts])))
    return Stage.parse(from_elements(element(b"$match", OBJECT, raw)))


def _conditions(document: bytes, start: int) -> Iterator[Condition]:
    for name, (kind, element_start, value, end) in spans(document, start):
        if name == b"$and" and kind == ARRAY and all(each[0] == OBJECT for _, each in spans(document, value)):
            for _, (_, _, inner, _) in spans(document, value):
                yield from _conditions(document, inner)
        else:
            yield Condition.of(from_elements(document[element_start:end]))


def _has_regex(document: bytes, span: Span) -> bool:
    kind, _, start, _ = span
    return kind == REGEX or (
        kind in (OBJECT, ARRAY) and any(_has_regex(document, each) for _, each in spans(document, start))
    )


_FLAGS: Final = frozenset({BOOL, INT32, INT64, DOUBLE, DECIMAL128})


def is_flag(span: Span) -> bool:
    """Whether the value of a field is a flag that includes or excludes it."""
    return span[0] in _FLAGS


def is_set(document: bytes, span: Span) -> bool:
    """Whether such a flag includes the field."""
    value = decode_value(document, span)
    return bool(value.to_decimal() if span[0] == DECIMAL128 else value)


def is_nested(document: bytes, span: Span) -> bool:
    """Whether the value for a field contains nested fields, and is not an expression."""
    if span[0] != OBJECT:
        return False
    first = next(spans(document, span[2]), None)
    return first is not None and not first[0].startswith(b"$")


def is_exclusion(document: bytes, start: int) -> bool:
    """Whether the specification of a ``$project`` excludes fields, and keeps all others."""
    flags = list(_flags(document, start))
    return bool(flags) and not any(flags)


def source_field(document: bytes, span: Span) -> bytes | None:
    """Return the top-level field that an expression merely copies; None for any other expression."""
    kind, _, start, end = span
    text = document[start + 4 : end - 1] if kind == STRING else b""
    is_field = text.startswith(b"$") and not text.startswith(b"$$") and b"." not in text and len(text) > 1
    return text[1:] if is_field else None


def unset_paths(stage: Stage) -> Iterator[bytes]:
    """Yield the paths that an ``$unset`` removes."""
    kind, _, start, end = stage.span
    if kind == STRING:
        yield stage.raw[start + 4 : end - 1]
    elif kind == ARRAY:
        for _, (each_kind, _, each_start, each_end) in spans(stage.raw, start):
            if each_kind == STRING:
                yield stage.raw[each_start + 4 : each_end - 1]


def _flags(document: bytes, start: int) -> Iterator[bool]:
    """Yield for each field, also nested ones, whether it is kept. An expression keeps it."""
    for _, span in spans(document, start):
        if is_nested(document, span):
            yield from _flags(document, span[2])
        else:
            yield not is_flag(span) or is_set(document, span)
