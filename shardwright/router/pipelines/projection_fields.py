"""What a ``$project``, ``$addFields``, ``$set`` or ``$unset`` does to each field, as far as its specification shows."""

from collections.abc import Iterator
from typing import Final

from shardwright.router.reads.pipeline import Stage
from shardwright.wire.rawbson import (
    ARRAY,
    BOOL,
    DECIMAL128,
    DOUBLE,
    INT32,
    INT64,
    OBJECT,
    STRING,
    Span,
    decode_value,
    spans,
)

_FLAGS: Final = frozenset({BOOL, INT32, INT64, DOUBLE, DECIMAL128})


def is_flag(span: Span) -> bool:
    """Whether the value for a field says that it is included or excluded."""
    return span[0] in _FLAGS


def is_set(document: bytes, span: Span) -> bool:
    """Whether such a value says that the field is included."""
    value = decode_value(document, span)
    return bool(value.to_decimal() if span[0] == DECIMAL128 else value)


def is_nested(document: bytes, span: Span) -> bool:
    """Whether the value for a field holds the fields inside it, and is not an expression."""
    if span[0] != OBJECT:
        return False
    first = next(spans(document, span[2]), None)
    return first is not None and not first[0].startswith(b"$")


def is_exclusion(document: bytes, start: int) -> bool:
    """Whether the specification of a ``$project`` excludes fields, and keeps all others."""
    flags = list(_flags(document, start))
    return bool(flags) and not any(flags)


def source_field(document: bytes, span: Span) -> bytes | None:
    """The top-level field that an expression is just a copy of; None if it is anything else."""
    kind, _, start, end = span
    text = document[start + 4 : end - 1] if kind == STRING else b""
    is_field = text.startswith(b"$") and not text.startswith(b"$$") and b"." not in text and len(text) > 1
    return text[1:] if is_field else None


def unset_paths(stage: Stage) -> Iterator[bytes]:
    """The paths that an ``$unset`` removes."""
    kind, _, start, end = stage.span
    if kind == STRING:
        yield stage.raw[start + 4 : end - 1]
    elif kind == ARRAY:
        for _, (each_kind, _, each_start, each_end) in spans(stage.raw, start):
            if each_kind == STRING:
                yield stage.raw[each_start + 4 : each_end - 1]


def _flags(document: bytes, start: int) -> Iterator[bool]:
    """For each field, also nested ones, whether it is kept. An expression keeps it."""
    for _, span in spans(document, start):
        if is_nested(document, span):
            yield from _flags(document, span[2])
        else:
            yield not is_flag(span) or is_set(document, span)
