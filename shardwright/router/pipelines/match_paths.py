"""What a ``$match`` reads, and the conditions that it consists of."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from shardwright.router.pipelines.expression_paths import expression_paths
from shardwright.router.pipelines.paths import WHOLE_DOCUMENT
from shardwright.router.reads.pipeline import Stage
from shardwright.wire.rawbson import (
    ARRAY,
    OBJECT,
    REGEX,
    Span,
    array_of_documents,
    element,
    from_elements,
    index,
    spans,
)

_LOGICAL: Final = frozenset({b"$and", b"$nor", b"$or"})
_COMPARISONS: Final = frozenset({b"$eq", b"$gt", b"$gte", b"$in", b"$lt", b"$lte", b"$ne", b"$nin"})

_FIXED: Final = re.compile(
    rb"\$(?:text|where|near|nearSphere|geoNear|comment|sampleRate|jsonSchema|rand|function|_internal\w+|always\w+)\0"
)
"""What a ``$match`` that stays in its place contains: it has to be first, differs from call to call, or is internal."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One of the conditions that a ``$match`` combines with "and".

    Attributes:
        raw: the condition as a filter.
        paths: what it reads, `WHOLE_DOCUMENT` if anything.
        field: the path that it is about, if it is about one.
    """

    raw: bytes
    paths: frozenset[bytes]
    field: bytes | None = None

    @classmethod
    def of(cls, raw: bytes) -> "Condition":
        """A filter with one element."""
        [name] = index(raw)
        return cls(raw, frozenset(match_paths(raw, 0)), None if name.startswith(b"$") else name)

    @property
    def compares(self) -> bool:
        """Whether it compares a field by value, so that it holds for all values that are equal or for none."""
        [(_, span)] = spans(self.raw)
        if self.field is None or span[0] == REGEX:
            return False
        operators = index(self.raw, span[2]) if span[0] == OBJECT else {}
        if not any(name.startswith(b"$") for name in operators):
            return True
        return all(name in _COMPARISONS for name in operators) and not _has_regex(self.raw, span)

    def renamed(self, field: bytes) -> "Condition":
        """The same condition about another path; it has to be about one."""
        [(_, (kind, _, start, end))] = spans(self.raw)
        return Condition(from_elements(element(field, kind, self.raw[start:end])), frozenset({field}), field)


def match_paths(document: bytes, start: int) -> Iterator[bytes]:
    """The paths that the filter at an offset reads; `WHOLE_DOCUMENT` where it may read anything."""
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
    """The conditions of a ``$match``; None if they have to stay where they are."""
    kind, _, start, _ = stage.span
    if kind != OBJECT or _FIXED.search(stage.raw) is not None:
        return None
    return list(_conditions(stage.raw, start))


def match_stage(parts: list[Condition]) -> Stage:
    """A ``$match`` that requires all of some conditions."""
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
