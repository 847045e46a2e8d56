"""The trace that an operation belongs to, in W3C's form: ``traceparent``.

Clients send it in a command's ``comment``, either as the whole comment or in a document with the field ``traceparent``,
or in ``$comment`` of a query. Malformed ones are ignored, because a comment may be any text.
"""

import re
from typing import Final

from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import (
    OBJECT,
    STRING,
    InvalidBSONError,
    Span,
    decode_value,
    element,
    find,
    is_string,
    string_value,
)
from shardwright.wire.request import Request

TRACE_CONTEXT: Final = b"traceContext"
"""The field with the router's ``traceparent`` in a request to a shard that lists it among its ``extensions``."""

COMMENT: Final = b"comment"
COMMENT_OF_QUERY: Final = b"$comment"

_QUERIES: Final = (b"filter", b"query")
_STATEMENTS: Final = {"update": b"updates", "delete": b"deletes"}
_TRACEPARENT: Final = b"traceparent"

_FORM: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_INVALID_VERSION: Final = "ff"
_FIRST_VERSION: Final = "00"
_SAMPLED: Final = 1


class TraceContext:
    """A span of a trace.

    Attributes:
        trace_id: 32 hexadecimal digits.
        span_id: 16 hexadecimal digits.
        is_sampled: whether the spans of the trace are recorded.
    """

    __slots__ = ("is_sampled", "span_id", "trace_id")

    def __init__(self, trace_id: str, span_id: str, *, is_sampled: bool) -> None:
        self.trace_id = trace_id
        self.span_id = span_id
        self.is_sampled = is_sampled

    @classmethod
    def parse(cls, text: object) -> "TraceContext | None":
        """Parse a ``traceparent``; None for anything else.

        A later version may have more fields at its end, version 00 has none.
        """
        found = _FORM.fullmatch(text) if is_string(text) else None
        if found is None:
            return None
        version, trace_id, span_id, flags, more = found.groups()
        if version == _INVALID_VERSION or (version == _FIRST_VERSION and more):
            return None
        if not int(trace_id, 16) or not int(span_id, 16):
            return None
        return cls(trace_id, span_id, is_sampled=bool(int(flags, 16) & _SAMPLED))

    @property
    def traceparent(self) -> str:
        """The text for the next server."""
        return f"{_FIRST_VERSION}-{self.trace_id}-{self.span_id}-{int(self.is_sampled):02}"

    @property
    def element(self) -> bytes:
        """The field of a request to a shard."""
        return element(TRACE_CONTEXT, STRING, string_value(self.traceparent))


def client_trace(request: Request) -> TraceContext | None:
    """Return the trace that a client names in the comment of a command or of its query."""
    try:
        if COMMENT in request.fields:
            found = _of_comment(request.body, request.fields[COMMENT])
            if found is not None:
                return found
        if COMMENT_OF_QUERY not in request.message.frame:
            return None
        document, query = _query(request)
        comment = None if query is None or query[0] != OBJECT else find(document, COMMENT_OF_QUERY, query[2])
        return None if comment is None else _of_comment(document, comment)
    except (CommandError, InvalidBSONError):
        return None  # malformed arguments: the command fails elsewhere


def router_trace(request: Request) -> TraceContext | None:
    """Return the trace in the field `TRACE_CONTEXT` of a request."""
    span = request.fields.get(TRACE_CONTEXT)
    if span is None or span[0] != STRING:
        return None
    return TraceContext.parse(decode_value(request.body, span))


def _of_comment(document: bytes, comment: Span) -> TraceContext | None:
    """Parse a comment; one that is a document is not decoded, because it may be large or nested too deep."""
    span: Span | None = comment
    if comment[0] == OBJECT:
        span = find(document, _TRACEPARENT, comment[2])
    return None if span is None or span[0] != STRING else TraceContext.parse(decode_value(document, span))


def _query(request: Request) -> tuple[bytes, Span | None]:
    """Return the query of a command, or of its first statement: the document that contains it, and its place."""
    statements = _STATEMENTS.get(request.name)
    if statements is None:
        return request.body, next((request.fields[name] for name in _QUERIES if name in request.fields), None)
    documents = request.documents(statements)
    return (documents[0], find(documents[0], b"q")) if documents else (b"", None)
