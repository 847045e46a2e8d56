"""Removal of ownership filters from replies and error messages, which must show only the client's own query.

``explain``, ``$currentOp`` and ``$planCacheStats`` show queries both as received and as parsed. Both forms contain the
name of the variable that identifies a filter. Documents are not decoded, and parts without a filter are copied.

If mongod cannot plan a query, its error shows the query with the filter. Then mongod explains the operation as the
client sent it. That executes nothing and fails with the message for the client.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import bson

from shardwright.daemon.first_stage import first_stage_names
from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.orphans.filtered_queries import NOT_RESERVED
from shardwright.shardd.orphans.ownership_filter import COMPLETE_KEY_VARIABLE, KEY_VARIABLE
from shardwright.sharding.versions import DATABASE_VERSION, SHARD_VERSION
from shardwright.wire.errors import CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import op_msg, with_body
from shardwright.wire.rawbson import (
    ARRAY,
    EMPTY_DOCUMENT,
    OBJECT,
    STRING,
    VALUE_CODEC,
    Span,
    array_documents,
    decode_value,
    element,
    encode_elements,
    find,
    from_elements,
    index,
    raw_document,
    spans,
    string_value,
    without,
)
from shardwright.wire.request import Request
from shardwright.wire.transport.client import response_body
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor

_SHOWING_STAGES: Final = frozenset({b"$currentOp", b"$planCacheStats"})
_VARIABLES: Final = (KEY_VARIABLE.encode(), COMPLETE_KEY_VARIABLE.encode())
_MARKS: Final = (KEY_VARIABLE.encode(), NOT_RESERVED)
"""The variable name of complete filters begins with the name of the others."""
_TEXT: Final = b"$expr: { $let: { vars: { " + KEY_VARIABLE.encode()
_SHOWN_EMPTY: Final = frozenset({b"parsedQuery", b"pipeline", b"q"})
"""Fields that mongod shows even if they are empty."""


def shows_queries(request: Request) -> bool:
    """Whether the reply to a request may show queries, of its own or of other operations."""
    if request.name != "aggregate":
        return request.name in ("explain", "currentOp")
    return any(name in _SHOWING_STAGES for name in first_stage_names(request))


def without_filters(frame: bytes | None) -> bytes | None:
    """Return a reply frame without filters; InvalidBSONError if it is malformed."""
    if frame is None or not _is_marked(frame):
        return frame
    return with_body(frame, document_without_filters(response_body(frame)))


def document_without_filters(document: bytes) -> bytes:
    """Return a raw document without filters; InvalidBSONError if it is malformed."""
    return _cleaned(document) or EMPTY_DOCUMENT


def _cleaned(document: bytes) -> bytes | None:
    """Return a document without filters; None if it contained nothing else."""
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
    """Return the single remaining part of ``{$and: […]}``, if any: mongod shows such a query without ``$and``."""
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
    """Cut a long command, which ``currentOp`` shows as a string, where the filter begins."""
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


_SHOWS_QUERY: Final = "error processing query: "
_AFTER_QUERY: Final = " planner returned error :: caused by :: "
_STATEMENTS: Final = {"update": b"updates", "delete": b"deletes"}
_NOT_EXPLAINED: Final = frozenset(
    {
        *(SHARD_VERSION, DATABASE_VERSION, b"$db", b"lsid", b"txnNumber", b"stmtId", b"stmtIds", b"writeConcern"),
        *(b"readConcern", b"$clusterTime", b"$configTime", b"$topologyTime", b"$readPreference", b"maxTimeMS"),
        *(b"autocommit", b"startTransaction"),
    }
)


@may_run_in_reactor
async def without_filter_in_errors(
    mongod: LocalMongod, request: Request, run: Callable[[], Awaitable[bytes | None]]
) -> bytes | None:
    """Run a request with an ownership filter; return the reply frame, without the filter in error messages.

    Args:
        request: the request as the client sent it.

    Raises:
        CommandError: raised by ``run``, also without the filter.
        BackendError: mongod does not answer.
    """
    try:
        frame = await run()
    except CommandError as error:
        if _AFTER_QUERY in error.message:
            await in_own_task()
            error.message = await _text(mongod, request, None, error.message)
        raise
    if frame is None or _AFTER_QUERY.encode() not in frame:
        return frame
    reply = response_body(frame)
    ok = find(reply, b"ok")
    if ok is not None and decode_value(reply, ok) and find(reply, b"writeErrors") is None:
        return frame  # not an error: a document contains that text
    await in_own_task()
    document: dict[str, Any] = bson.decode(reply, codec_options=VALUE_CODEC)
    if "errmsg" in document:
        document["errmsg"] = await _text(mongod, request, None, document["errmsg"])
    for entry in document.get("writeErrors", ()):
        entry["errmsg"] = await _text(mongod, request, entry["index"], entry.get("errmsg", ""))
    return with_body(frame, bson.encode(document))


async def _text(mongod: LocalMongod, request: Request, position: int | None, text: str) -> str:
    """Return an error message without the filter, for the statement at `position` or for the whole command."""
    if _AFTER_QUERY not in text:
        return text
    explained = element(b"explain", OBJECT, _explained(request, position))
    body = from_elements(explained + encode_elements({"verbosity": "queryPlanner", "$db": request.db}))
    reply = response_body(await mongod.pool.exchange(op_msg(body, request_id=next_request_id())))
    message = find(reply, b"errmsg")
    if message is not None:
        return str(decode_value(reply, message))
    # The error no longer occurs. Without the query, the reason remains.
    return text[: text.index(_SHOWS_QUERY)] + text.partition(_AFTER_QUERY)[2] if _SHOWS_QUERY in text else text


def _explained(request: Request, position: int | None) -> bytes:
    """Return the command to explain, with only the statement at `position` if given."""
    field = _STATEMENTS.get(request.name)
    if field is None or position is None:
        return without(request.body, _NOT_EXPLAINED)
    statement = raw_document(request.documents(field)[position])
    body = without(request.body, _NOT_EXPLAINED | {field})
    return from_elements(body[4:-1] + encode_elements({field.decode(): [statement]}))
