"""The pipelines of ``update`` and ``findAndModify``, as they stand in a request. Pure."""

from collections.abc import Iterator
from typing import Final

from shardwright.wire.rawbson import ARRAY, Span, find
from shardwright.wire.request import Request

_IN_STATEMENT: Final = b"\x04u\0"
_FIND_AND_MODIFY: Final = frozenset({"findAndModify", "findandmodify"})


def update_pipelines(request: Request) -> Iterator[tuple[bytes, Span]]:
    """The pipelines by which a request updates documents: each as a document and where in it the array is.

    Raises:
        CommandError: an ``update`` without statements.
        InvalidBSONError: a statement is not well-formed.
    """
    if request.name in _FIND_AND_MODIFY:
        span = request.fields.get(b"update")
        if span is not None and span[0] == ARRAY:
            yield request.body, span
    elif request.name == "update" and _IN_STATEMENT in request.message.frame:
        for statement in request.documents(b"updates"):
            span = find(statement, b"u")
            if span is not None and span[0] == ARRAY:
                yield statement, span
