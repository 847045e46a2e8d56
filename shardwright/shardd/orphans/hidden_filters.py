"""Removing the ownership filters from replies in which mongod shows queries.

``explain``, ``$currentOp`` and ``$planCacheStats`` show queries as they were received, and as they were parsed. Both
forms contain the name of the variable by which a filter is recognised. Nothing is decoded; parts without a filter are
copied.
"""

from typing import Final

from shardwright.daemon.first_stage import first_stage_names
from shardwright.shardd.orphans.filtered_pipelines import NOT_RESERVED
from shardwright.shardd.orphans.ownership_filter import COMPLETE_KEY_VARIABLE, KEY_VARIABLE
from shardwright.wire.message import with_body
from shardwright.wire.rawbson import (
    ARRAY,
    EMPTY_DOCUMENT,
    OBJECT,
    STRING,
    Span,
    array_documents,
    element,
    find,
    from_elements,
    index,
    spans,
    string_value,
)
from shardwright.wire.request import Request
from shardwright.wire.transport.client import response_body

_SHOWING_STAGES: Final = frozenset({b"$currentOp", b"$planCacheStats"})
_VARIABLES: Final = (KEY_VARIABLE.encode(), COMPLETE_KEY_VARIABLE.encode())
_MARKS: Final = (KEY_VARIABLE.encode(), NOT_RESERVED)
"""The name in complete filters begins with the other one."""
_TEXT: Final = b"$expr: { $let: { vars: { " + KEY_VARIABLE.encode()
_SHOWN_EMPTY: Final = frozenset({b"parsedQuery", b"pipeline", b"q"})
"""Fields that mongod shows even if they are empty."""


def shows_queries(request: Request) -> bool:
    """Whether the reply to a request may show queries, of its own or of other operations."""
    if request.name != "aggregate":
        return request.name in ("explain", "currentOp")
    return any(name in _SHOWING_STAGES for name in first_stage_names(request))


def without_filters(frame: bytes | None) -> bytes | None:
    """The frame of a reply without filters.

    Raises:
        InvalidBSONError: it is not well-formed.
    """
    if frame is None or not _is_marked(frame):
        return frame
    return with_body(frame, document_without_filters(response_body(frame)))


def document_without_filters(document: bytes) -> bytes:
    """A raw document without filters.

    Raises:
        InvalidBSONError: it is not well-formed.
    """
    return _cleaned(document) or EMPTY_DOCUMENT


def _cleaned(document: bytes) -> bytes | None:
    """A document without filters; None if it contained nothing else."""
    only = _only_part(document)
    if only is not None:
        return only
    elements = []
    for name, span in spans(document):
        if name == b"$expr" and _is_filter(document, span):
            continue
        value = _cleaned_value(document[span[2] : span[3]], span[0])
        if value is None and name in _SHOWN_EMPTY:
            value = EMPTY_DOCUMENT
        if value is not None:
            elements.append(element(name, span[0], value))
    return from_elements(b"".join(elements)) if elements or document == EMPTY_DOCUMENT else None


def _only_part(document: bytes) -> bytes | None:
    """The only part left of ``{$and: […]}``, if there is just one: mongod shows such a query without ``$and``."""
    conjunction = find(document, b"$and")
    if conjunction is None or conjunction[0] != ARRAY or not _is_marked(document[conjunction[2] : conjunction[3]]):
        return None
    parts = [part for part in map(_cleaned, array_documents(document, conjunction)) if part is not None]
    return parts[0] if len(parts) == 1 and len(index(document)) == 1 else None


def _cleaned_value(value: bytes, kind: int) -> bytes | None:
    if kind not in (OBJECT, ARRAY, STRING) or not _is_marked(value):
        return value
    if kind == OBJECT:
        return None if value == NOT_RESERVED else _cleaned(value)
    if kind == STRING:
        return _cut(value)
    found = [(below[0], _cleaned_value(value[below[2] : below[3]], below[0])) for _, below in spans(value)]
    left = [(below, part) for below, part in found if part is not None]
    if not left:
        return None
    return from_elements(b"".join(element(b"%d" % at, below, part) for at, (below, part) in enumerate(left)))


def _cut(string: bytes) -> bytes:
    """Cut a command that ``currentOp`` shows as a string, because it is long, where the filter begins."""
    at = string.find(_TEXT, 4)
    if at < 0:
        return string
    return string_value(string[4:at])


def _is_filter(document: bytes, expression: Span) -> bool:
    """Whether the value of ``$expr`` is an ownership filter."""
    if expression[0] != OBJECT:
        return False
    for name in (b"$let", b"vars"):
        found = find(document, name, expression[2])
        if found is None or found[0] != OBJECT:
            return False
        expression = found
    return any(find(document, name, expression[2]) is not None for name in _VARIABLES)


def _is_marked(value: bytes) -> bool:
    return any(mark in value for mark in _MARKS)
