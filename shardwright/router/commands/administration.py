"""Commands for the administrators of servers: logs, certificates, ``fsync``, plan caches, shutdown, ``multicast``.

``logRotate`` and ``rotateCertificates`` affect all processes of this router.
"""

from time import perf_counter
from typing import Any, Final

import bson
import trio

from shardwright.daemon.certificates import rotate_certificates
from shardwright.router.ddl.coordinated import MAJORITY
from shardwright.router.ddl.merged_replies import merge_promoted, merge_raw
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.scatter import connection_strings, read_all_shards, scatter, send_to_owning_shards
from shardwright.router.processes.workers import (
    end_router,
    tell_supervisor_certificates_changed,
    tell_supervisor_logs_were_rotated,
)
from shardwright.router.replies.reply_builder import PlainError, Reply
from shardwright.router.replies.shard_reply import answer_of, raise_worst
from shardwright.wire.arguments import Arguments, Strictness
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError, wrong_type
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import (
    BOOL,
    DECIMAL128,
    DOUBLE,
    INT32,
    INT64,
    OBJECT,
    STRING,
    decode_document,
    raw_document,
    type_name,
)
from shardwright.wire.read_preference import PRIMARY
from shardwright.wire.request import Request

_NAME: Final = b"logRotate"
_KINDS: Final = frozenset({BOOL, INT32, INT64, DOUBLE, DECIMAL128, STRING})
"""Accepted types of the argument. A string names one log, anything else means all."""


async def log_rotate(operation: Operation) -> Reply:
    """Rotates the log and the audit log."""
    options = operation.context.options
    named = _named(operation.request)
    try:
        options.logs.rotate_for_client(named)
    finally:  # one log may have been rotated before the other failed
        tell_supervisor_logs_were_rotated(options)
    return {}


def _named(request: Request) -> str | None:
    """Return the name of the log to rotate; None for all."""
    kind = request.fields[_NAME][0]
    if kind not in _KINDS:
        raise wrong_type("logRotate.logRotate", kind, type_name(BOOL), type_name(STRING))
    Arguments.of(request, "logRotate").refuse_unknown((_NAME,))
    return str(request.get(_NAME)) if kind == STRING else None


async def rotate(operation: Operation) -> Reply:
    """Reads certificates, keys, authorities and revocation lists again; without TLS there are none."""
    context, message = operation.context, Arguments.of(operation.request).maybe_string(b"message")
    rotate_certificates(context.transport.tls, message)
    tell_supervisor_certificates_changed(context.options, context.transport.tls)
    return {}


async def shutdown(operation: Operation) -> Reply:
    """Shuts this router down; there is no reply, and timeoutSecs is how long running operations may continue."""
    arguments = Arguments.of(operation.request)
    arguments.boolean(b"force", strictness=Strictness.BOOL)
    seconds = arguments.maybe_integer(b"timeoutSecs")
    if seconds is not None:
        operation.context.shutdown_seconds_wanted = float(seconds)
    operation.client.is_finished = True
    end_router(operation.context.options)
    return None


async def fsync(operation: Operation) -> Reply:
    """Makes the primaries of all shards write their data to disk."""
    if operation.argument(b"lock"):
        raise PlainError("can't do lock through mongos")
    replies = await read_all_shards(operation, preference=PRIMARY)
    raise_worst(replies)
    return {
        "numFiles": sum(int(reply.get(b"numFiles", 0)) for reply in replies),
        "all": {reply.shard_id: answer_of(reply) for reply in replies},
    }


async def append_oplog_note(operation: Operation) -> Reply:
    """Writes a note into the oplogs of all shards."""
    data = _data(operation.request)
    body = bson.encode({"appendOplogNote": 1, "data": raw_document(data), "writeConcern": MAJORITY, "$db": "admin"})
    shards = await operation.context.shards.all_ids()
    replies = await scatter(operation, {shard: op_msg(body, request_id=next_request_id()) for shard in shards})
    return merge_raw(replies, await connection_strings(operation, replies))


def _data(request: Request) -> bytes:
    """Return the note."""
    span = request.fields.get(b"data")
    if span is None:
        raise CommandError(ErrorCode.NoSuchKey, 'Missing expected field "data"')
    if span[0] != OBJECT:
        raise CommandError(
            ErrorCode.TypeMismatch, f'"data" had the wrong type. Expected object, found {type_name(span[0])}'
        )
    return request.body[span[2] : span[3]]


_TIMEOUT_SECONDS: Final = 5.0


async def multicast(operation: Operation) -> Reply:
    """Runs a command on each config server and each member of each shard."""
    context, arguments = operation.context, Arguments.of(operation.request)
    command_body = decode_document(arguments.raw(b"multicast"))
    db = arguments.maybe_string(b"db") or "admin"
    await context.shards.all_ids()
    monitors = [context.catalog.client.monitor, *(shard.client.monitor for shard in context.shards.known())]
    answers: dict[str, Any] = {}

    async def ask(address: str) -> None:
        started = perf_counter()
        try:
            with trio.fail_after(_TIMEOUT_SECONDS):
                data: dict[str, Any] = await context.pools[address].command(db, command_body)
        except CommandError as error:
            data = error.reply()
        except (BackendError, trio.TooSlowError) as error:
            data = {"ok": 0.0, "errmsg": str(error) or "timed out"}
        milliseconds = int((perf_counter() - started) * 1000)
        answers[address] = {"ok": data["ok"], "data": data, "elapsedMillis": milliseconds}

    async with trio.open_nursery() as nursery:
        for monitor in monitors:
            for address in monitor.members:
                nursery.start_soon(ask, address)
    return {"hosts": dict(sorted(answers.items()))}


async def plan_cache_clear(operation: Operation) -> Reply:
    """Drops cached plans of a collection."""
    return await _on_owning_shards(operation)


async def plan_cache_list_filters(operation: Operation) -> Reply:
    """The index filters of a collection."""
    return await _on_owning_shards(operation)


async def plan_cache_set_filter(operation: Operation) -> Reply:
    """Sets the indexes that the planner considers for a query shape."""
    return await _on_owning_shards(operation)


async def plan_cache_clear_filters(operation: Operation) -> Reply:
    """Removes the index filter of a query shape, or all of a collection."""
    return await _on_owning_shards(operation)


async def _on_owning_shards(operation: Operation) -> Reply:
    _, replies = await send_to_owning_shards(
        operation, operation.namespace, preference=operation.read_preference, may_repeat=True
    )
    return merge_promoted(replies)
