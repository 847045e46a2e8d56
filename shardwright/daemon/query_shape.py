"""The shape of an operation, and the fields that the slow lines of all daemons have in common.

The shape is a command without the values, so that operations that differ only in values are alike. Names of fields and
operators stay, literals become ``?``. Two operations with the same shape have the same hash.

Only some bytes of a command determine its shape. `free_of_shape` finds the others, so that the shape of a command can
be recognised from an earlier one without decoding it.
"""

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, Final

from shardwright.wire.cursor_batch import documents_returned
from shardwright.wire.errors import CommandError, RemoteProtocolError
from shardwright.wire.limits import NESTING_LEVELS_MAX
from shardwright.wire.message import OpMsg
from shardwright.wire.passages import Range
from shardwright.wire.rawbson import (
    ARRAY,
    BINARY,
    BOOL,
    DOUBLE,
    INT32,
    INT64,
    OBJECT,
    STRING,
    InvalidBSONError,
    deciding_bytes,
    decode_document,
    decode_value,
    depth_exceeds,
    from_elements,
    index,
    is_string,
    spans,
)
from shardwright.wire.request import Request
from shardwright.wire.trace_context import client_trace
from shardwright.wire.transport.client_connection import ClientConnection

LITERAL: Final = "?"
"""The placeholder of a value."""

SHAPE_CHARACTERS_MAX: Final = 4_000
"""Longer shapes are left out; their hash remains."""

_DEPTH_MAX: Final = 20

_FIELDS: Final = (b"filter", b"query", b"key", b"update", b"pipeline", b"sort", b"projection", b"fields", b"hint")
"""The arguments that make up the shape, of any command."""

_VERBATIM: Final = frozenset({"sort", "projection", "fields", "hint", "key"})
"""Arguments whose numbers and booleans are part of the shape."""

_NUMBERS: Final = frozenset({BOOL, DOUBLE, INT32, INT64})

_STATEMENTS: Final = {"update": b"updates", "delete": b"deletes"}

_OF_STATEMENT: Final = ("q", "u")

_CHANGES: Final = frozenset({"update", "u"})
"""Arguments with a pipeline, or with a document of operators or values."""

_QUERY: Final = "query"
_NO_PATHS: Final = frozenset({"$elemMatch", "$literal", "$match", "filter", _QUERY, "q", "restrictSearchWithMatch"})
"""Operators and arguments in which text that begins with a dollar sign is a value; elsewhere it is a field path."""

_PROJECTIONS: Final = frozenset({"projection", "fields"})
_EXPRESSION: Final = "expression"
"""The place of an expression in a projection. Only the numbers of expressions are values."""

_DOLLAR: Final = ord("$")
_EMPTY_STRING_BYTES: Final = 5

_BATCHES: Final = (b"firstBatch", b"nextBatch")


def query_shape(request: Request) -> dict[str, Any]:
    """Return the shape of a command; for writes with several statements, the shape of the first one."""
    try:
        return shape_of_arguments(request.name, shaping_arguments(request))
    except (InvalidBSONError, CommandError):
        return {request.name: LITERAL}  # malformed arguments: the command fails elsewhere


def shaping_arguments(request: Request) -> bytes:
    """Return the raw arguments that determine the shape, as a document; for writes, the first statement.

    Raises:
        CommandError: the statements are malformed.
    """
    statements = _STATEMENTS.get(request.name)
    if statements is not None:
        documents = request.documents(statements)
        return documents[0] if documents else from_elements(b"")
    fields, body = request.fields, request.body
    return from_elements(b"".join([body[fields[name][1] : fields[name][3]] for name in _FIELDS if name in fields]))


def shape_of_arguments(command: str, arguments: bytes) -> dict[str, Any]:
    """Return the shape of a command with the arguments of `shaping_arguments`.

    Raises:
        InvalidBSONError: they are malformed, or nested too deep.
    """
    if depth_exceeds(arguments, NESTING_LEVELS_MAX):
        raise InvalidBSONError("arguments nested deeper than documents may be")
    decoded = decode_document(arguments)
    names = (name for name in _OF_STATEMENT if name in decoded) if command in _STATEMENTS else decoded
    shape: dict[str, Any] = {command: LITERAL}
    for name in names:
        place = _place_of(name, is_document=isinstance(decoded[name], Mapping))
        shape[name] = _normalized(decoded[name], place, 0)
    return shape


def free_of_shape(command: str, arguments: bytes) -> list[Range]:
    """Return the ranges of arguments whose bytes can differ without another shape.

    Args:
        arguments: as returned by `shaping_arguments`.

    Raises:
        InvalidBSONError: they are malformed.
    """
    free: list[Range] = []
    for raw_name, (kind, _, start, end) in spans(arguments):
        name = raw_name.decode(errors="replace")
        is_part = command not in _STATEMENTS or name in _OF_STATEMENT
        place = _place_of(name, is_document=kind == OBJECT) if is_part else _QUERY
        free += _free(arguments, kind, start, end, place, 0)
    return free


def query_hash(shape: Mapping[str, Any]) -> str:
    """Return eight hexadecimal digits that depend on a shape only."""
    return sha256(_text(shape).encode()).hexdigest()[:8].upper()


def shown_shape(shape: Mapping[str, Any], characters_max: int = SHAPE_CHARACTERS_MAX) -> Mapping[str, Any] | None:
    """Return the shape to show; None if it is too long."""
    return shape if len(_text(shape)) <= characters_max else None


def _text(shape: Mapping[str, Any]) -> str:
    return json.dumps(shape, separators=(",", ":"))


def _place_of(name: str, *, is_document: bool) -> str:
    """Return the place of an argument. A change that is a document has values where a pipeline has field paths."""
    return _QUERY if is_document and name in _CHANGES else name


def _inner_place(name: str, place: str) -> str:
    """Return the place of a field's value in a document at ``place``."""
    if name in _NO_PATHS:
        return name
    return _EXPRESSION if place in _PROJECTIONS and name.startswith("$") else place


def _element_place(place: str) -> str:
    """Return the place of the elements of an array at ``place``; in a projection it is an expression."""
    return _EXPRESSION if place in _PROJECTIONS else place


def _normalized(value: Any, place: str, depth: int) -> Any:  # noqa: ANN401 - BSON values, and their shapes
    if depth > _DEPTH_MAX:
        return LITERAL
    if isinstance(value, Mapping):
        return {name: _normalized(part, _inner_place(name, place), depth + 1) for name, part in value.items()}
    if isinstance(value, list):
        place = _element_place(place)
        return _alike_once([_normalized(part, place, depth + 1) for part in value])
    if place in _VERBATIM and isinstance(value, bool | int | float):
        return value
    if is_string(value) and value.startswith("$") and place not in _NO_PATHS:
        return value
    return LITERAL


def _alike_once(parts: list[Any]) -> list[Any]:
    """Keep the first of equal consecutive parts of an array."""
    return [part for position, part in enumerate(parts) if not position or part != parts[position - 1]]


def _free(arguments: bytes, kind: int, start: int, end: int, place: str, depth: int) -> Iterator[Range]:
    """Yield the free ranges of a value; the counterpart of `_normalized`."""
    if kind in (OBJECT, ARRAY):
        if depth < _DEPTH_MAX:
            for raw_name, (inner, _, inner_start, inner_end) in spans(arguments, start):
                is_field = kind == OBJECT
                inner_place = (
                    _inner_place(raw_name.decode(errors="replace"), place) if is_field else _element_place(place)
                )
                yield from _free(arguments, inner, inner_start, inner_end, inner_place, depth + 1)
    elif kind == STRING:
        if place in _NO_PATHS:
            yield start + 4, end - 1
        elif end - start > _EMPTY_STRING_BYTES and arguments[start + 4] != _DOLLAR:
            yield start + 5, end - 1  # with another first character it might be a path
    elif kind == BINARY:
        yield start + 5, end
    elif kind != BOOL and not (place in _VERBATIM and kind in _NUMBERS) and deciding_bytes(kind) == 0:
        yield start, end


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
    trace = client.trace or client_trace(request)
    return {
        "connection_id": client.id,
        "remote": client.peer,
        "command": request.name,
        "duration_ms": round(seconds * 1000, 1),
        **({"app_name": client.app_name} if client.app_name else {}),
        **({"user": user} if user else {}),
        **({} if trace is None else {"trace_id": trace.trace_id, "span_id": trace.span_id}),
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
            return None if batch is None or batch[0] != ARRAY else documents_returned(reply)
        number = decode_value(body, fields[b"n"]) if b"n" in fields else None
    except (InvalidBSONError, RemoteProtocolError):
        return None
    return number if isinstance(number, int) else None
