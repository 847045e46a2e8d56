"""Reading the fields of commands for events. Pure."""

from typing import Any

from shardwright.wire.rawbson import decode_document
from shardwright.wire.request import Request


def value_of(request: Request, name: str) -> Any:  # noqa: ANN401 - whatever a client sent
    """Return the value of a field; a document sequence is an array outside of the body."""
    for sequence in request.message.sequences:
        if sequence.name == name.encode():
            return [decode_document(document) for document in sequence.documents]
    return request.get(name.encode())


def first_of(request: Request) -> Any:  # noqa: ANN401 - whatever a client sent
    """Return the value of the field that has the command's name."""
    return request.get(request.name.encode())
