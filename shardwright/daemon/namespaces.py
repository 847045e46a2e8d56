"""The namespace of a request, for logs."""

from collections.abc import Container
from typing import Final

from shardwright.wire.rawbson import OBJECT, STRING, InvalidBSONError, Span, spans
from shardwright.wire.request import Request

_NAME_NO_COLLECTION: Final = frozenset(
    {"clearLog", "configureFailPoint", "echo", "getLog", "getParameter", "waitForFailPoint"}
)
"""Commands of all daemons whose argument may be a string other than a collection's name."""


def namespace_of(request: Request, *, in_full: Container[str] = (), without: Container[str] = ()) -> str:
    """Return the namespace of a request; only the database if it names no collection.

    Args:
        in_full: commands whose argument is ``db.collection``, or a database, instead of a collection name.
        without: commands of the daemon whose argument is another name, such as a shard's.
    """
    if request.name in without or request.name in _NAME_NO_COLLECTION:
        return request.db
    # The argument of getMore itself is a cursor.
    span = request.fields.get(b"collection") if request.name == "getMore" else next(iter(request.fields.values()))
    name = None if span is None else _string(request.body, span)
    if name is None:
        return request.db
    return name if request.name in in_full else f"{request.db}.{name}"


def _string(body: bytes, span: Span) -> str | None:
    """Return the string value, or the nested command's (in ``explain``)."""
    if span[0] == OBJECT:
        try:
            span = next((inner for _, inner in spans(body, span[2])), span)
        except InvalidBSONError:
            return None
    if span[0] != STRING:
        return None
    return body[span[2] + 4 : span[3] - 1].decode(errors="replace")
