"""The pipelines of a command, as raw BSON within a request. Pure."""

from collections.abc import Iterator, Sequence
from typing import Final

from shardwright.wire.rawbson import ARRAY, Span, append, array_of_documents, element, find, without
from shardwright.wire.request import Request

_PIPELINE: Final = b"pipeline"


def with_stages(body: bytes, stages: Sequence[bytes]) -> bytes:
    """Replace the pipeline of a command by raw ``stages``."""
    return append(without(body, (_PIPELINE,)), element(_PIPELINE, ARRAY, array_of_documents(stages)))


_IN_STATEMENT: Final = b"\x04u\0"
_FIND_AND_MODIFY: Final = frozenset({"findAndModify", "findandmodify"})


def update_pipelines(request: Request) -> Iterator[tuple[bytes, Span]]:
    """Yield the update pipelines of a request, each as a document and the span of the array in it.

    Raises:
        CommandError: an ``update`` without statements.
        InvalidBSONError: a statement is malformed.
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
