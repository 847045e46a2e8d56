"""Fields that the slow lines of all daemons have in common, and the shape of an operation.

The shape is the command without the values, so that operations that differ only in values are alike. Names of fields
and operators stay, literals become ``?``. Two operations with the same shape have the same hash.
"""

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

from shardwright.wire.errors import CommandError, RemoteProtocolError
from shardwright.wire.message import OpMsg
from shardwright.wire.rawbson import (
    ARRAY,
    OBJECT,
    InvalidBSONError,
    decode_document,
    decode_value,
    index,
    is_string,
    spans,
)
from shardwright.wire.request import Request
from shardwright.wire.transport.client_connection import ClientConnection

LITERAL: Final = "?"
"""The placeholder of a value."""

SHAPE_CHARACTERS_MAX: Final = 4_000
"""Longer shapes are left out; their hash remains."""

_DEPTH_MAX: Final = 20

_FIELDS: Final = ("filter", "query", "key", "update", "pipeline", "sort", "projection", "fields", "hint")
"""The arguments that make up the shape, of any command."""

_VERBATIM: Final = frozenset({"sort", "projection", "fields", "hint", "key"})
"""Arguments whose numbers and booleans are part of the shape."""

_STATEMENTS: Final = {"update": b"updates", "delete": b"deletes"}

_NO_PATHS: Final = frozenset({"$match", "$literal", "filter", "query", "q"})
"""Operators and arguments in which text that begins with a dollar sign is a value; elsewhere it is a field path."""


def query_shape(request: Request) -> dict[str, Any]:
    """Return the shape of a command; for writes with several statements, the shape of the first one."""
    try:
        return {request.name: LITERAL, **_arguments(request)}
    except (InvalidBSONError, CommandError):
        return {request.name: LITERAL}  # malformed arguments: the command fails elsewhere


def query_hash(shape: Mapping[str, Any]) -> str:
    """Return eight hexadecimal digits that depend on a shape only."""
    return sha256(_text(shape).encode()).hexdigest()[:8].upper()


def shown_shape(shape: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the shape for a log line; None if it is too long."""
    return shape if len(_text(shape)) <= SHAPE_CHARACTERS_MAX else None


def _text(shape: Mapping[str, Any]) -> str:
    return json.dumps(shape, separators=(",", ":"))


def _arguments(request: Request) -> dict[str, Any]:
    statements = _STATEMENTS.get(request.name)
    if statements is not None:
        documents = request.documents(statements)
        first = decode_document(documents[0]) if documents else {}
        return {name: _normalized(first[name], name, 0) for name in ("q", "u") if name in first}
    wanted = [name for name in _FIELDS if name.encode() in request.fields]
    if not wanted:
        return {}
    document = decode_document(request.body)
    return {name: _normalized(document[name], name, 0) for name in wanted}


def _normalized(value: Any, place: str, depth: int) -> Any:  # noqa: ANN401 - BSON values, and their shapes
    if depth > _DEPTH_MAX:
        return LITERAL
    if isinstance(value, Mapping):
        return {
            name: _normalized(part, name if name in _NO_PATHS else place, depth + 1) for name, part in value.items()
        }
    if isinstance(value, list):
        return _alike_once([_normalized(part, place, depth + 1) for part in value])
    if place in _VERBATIM and isinstance(value, bool | int | float):
        return value
    if is_string(value) and value.startswith("$") and place not in _NO_PATHS:
        return value
    return LITERAL


def _alike_once(parts: list[Any]) -> list[Any]:
    """Keep the first of equal consecutive parts of an array."""
    return [part for position, part in enumerate(parts) if not position or part != parts[position - 1]]


_BATCHES: Final = (b"firstBatch", b"nextBatch")


def slow_fields(
    client: ClientConnection, request: Request, reply: bytes | None, seconds: float, user: str
) -> dict[str, Any]:
    """Return the fields that describe an operation, without values of its client.

    Args:
        reply: the frame of the reply; None if there was none, or it was relayed as it came.
        user: the full name of the user; empty without a login.
    """
    shape = query_shape(request)
    shown = shown_shape(shape)
    documents = None if reply is None else documents_in(reply)
    return {
        "connection_id": client.id,
        "remote": client.peer,
        "command": request.name,
        "duration_ms": round(seconds * 1000, 1),
        **({"app_name": client.app_name} if client.app_name else {}),
        **({"user": user} if user else {}),
        **({} if shown is None else {"shape": shown}),
        "query_hash": query_hash(shape),
        "request_bytes": len(request.message.frame),
        **({} if reply is None else {"reply_bytes": len(reply)}),
        **({} if documents is None else {"documents": documents}),
    }


def documents_in(reply: bytes) -> int | None:
    """Count the documents in the batch of a reply, or return its ``n``; None if it has neither."""
    try:
        body = OpMsg(reply).body
        fields = index(body)
        cursor = fields.get(b"cursor")
        if cursor is not None and cursor[0] == OBJECT:
            parts = index(body, cursor[2])
            batch = next((parts[name] for name in _BATCHES if name in parts), None)
            return None if batch is None or batch[0] != ARRAY else sum(1 for _ in spans(body, batch[2]))
        number = decode_value(body, fields[b"n"]) if b"n" in fields else None
    except (InvalidBSONError, RemoteProtocolError):
        return None
    return number if isinstance(number, int) else None
