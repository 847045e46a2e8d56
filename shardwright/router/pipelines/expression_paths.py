"""The paths of the input document that an aggregation expression reads."""

from collections.abc import Iterator
from typing import Final

from shardwright.router.pipelines.paths import WHOLE_DOCUMENT
from shardwright.wire.rawbson import ARRAY, OBJECT, STRING, Span, spans

_CONSTANTS: Final = frozenset({b"$literal", b"$const", b"$meta"})
_OF_DOCUMENT: Final = (b"ROOT", b"CURRENT")
_SORTING: Final = frozenset({b"$bottom", b"$bottomN", b"$top", b"$topN"})
"""Accumulators whose ``sortBy`` names paths."""


def expression_paths(document: bytes, span: Span) -> Iterator[bytes]:
    """The paths that the expression at a span reads; `WHOLE_DOCUMENT` where it may read anything.

    An accumulator or a window function counts as an expression. Paths of the values of variables are included, so
    expressions that give ``CURRENT`` another meaning read no more than what is returned here.
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
    """The paths that a sort specification names; ``$meta`` reads no field."""
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
