"""Error messages that show only what the client sent.

If mongod cannot plan a query, its error shows the query with the ownership filter that was added here. Then mongod is
asked to explain the operation as the client sent it, which executes nothing and fails with the message that the client
should get.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import bson

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.sharding.versions import DATABASE_VERSION, SHARD_VERSION
from shardwright.wire.errors import CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import op_msg, with_body
from shardwright.wire.rawbson import (
    OBJECT,
    VALUE_CODEC,
    decode_value,
    element,
    encode_elements,
    find,
    from_elements,
    raw_document,
    without,
)
from shardwright.wire.request import Request
from shardwright.wire.transport.client import response_body
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor

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
    """Run a request with an ownership filter; returns the frame of the reply, without the filter in error messages.

    Args:
        mongod: the local mongod.
        request: the request as the client sent it.
        run: runs it with the filter.

    Raises:
        CommandError: raised by ``run``, likewise without the filter.
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
    """The error message without the filter, for the statement at a position or for the whole command."""
    if _AFTER_QUERY not in text:
        return text
    explained = element(b"explain", OBJECT, _explained(request, position))
    body = from_elements(explained + encode_elements({"verbosity": "queryPlanner", "$db": request.db}))
    reply = response_body(await mongod.pool.exchange(op_msg(body, request_id=next_request_id())))
    message = find(reply, b"errmsg")
    if message is not None:
        return str(decode_value(reply, message))
    # The error no longer occurs. Without the part that shows the query, the reason remains.
    return text[: text.index(_SHOWS_QUERY)] + text.partition(_AFTER_QUERY)[2] if _SHOWS_QUERY in text else text


def _explained(request: Request, position: int | None) -> bytes:
    """The command to explain, with only the statement at a position if there is one."""
    field = _STATEMENTS.get(request.name)
    if field is None or position is None:
        return without(request.body, _NOT_EXPLAINED)
    statement = raw_document(request.documents(field)[position])
    body = without(request.body, _NOT_EXPLAINED | {field})
    return from_elements(body[4:-1] + encode_elements({field.decode(): [statement]}))
