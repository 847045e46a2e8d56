"""``profile``: on a router, only which operations are logged as slow."""

from typing import Any, Final

import bson
from bson.objectid import ObjectId

from shardwright.router.commands.command_registry import command
from shardwright.router.operations.operation import Operation
from shardwright.router.processes.siblings import is_from_sibling, tell_siblings
from shardwright.router.replies.own_reply import Reply
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import raw_document

_UNCHANGED: Final = -1
_FILTER: Final = b"filter"
_UNSET: Final = "unset"
_KNOB_IS_OFF: Final = 7283301
_NOTE: Final = (
    "When a filter expression is set, slowms and sampleRate are not used for profiling and slow-query log lines."
)


@command("profile")
async def profile(operation: Operation) -> Reply:
    """Shows or changes which operations are logged as slow, in all processes of this router."""
    context, request = operation.context, operation.request
    arguments = Arguments.of(request)
    arguments.required_value(b"profile")
    level = arguments.maybe_integer(b"profile", minimum=None)
    if level not in (_UNCHANGED, 0):
        raise CommandError(
            ErrorCode.BadValue,
            "Profiling is not permitted on mongoS: the 'profile' field should be 0 to change 'slowms', 'sampleRate', "
            "or 'filter' settings for logging, or -1 to view current values",
        )
    slow_ms, sample_rate = arguments.maybe_integer(b"slowms", minimum=None), _sample_rate(arguments)
    given = _filter(operation, arguments)
    query = await _parsed(operation, given) if isinstance(given, bytes) else None
    rule = context.slow_operations
    reply = _shown(operation) | ({} if query is None else {"note": _NOTE})
    rule.change(slow_ms, sample_rate)
    changes: dict[str, Any] = {"profile": level, "slowms": int(rule.slow_ms), "sampleRate": rule.sample_rate}
    if given is not None:
        rule.set_filter(request.db, query)
        changes["filter"] = _UNSET if query is None else raw_document(query)
    if slow_ms is not None or sample_rate is not None or given is not None:
        await tell_siblings(context, request, changes)
    return reply


def _shown(operation: Operation) -> dict[str, Any]:
    rule = operation.context.slow_operations
    query = rule.filter_of(operation.request.db)
    shown = {"was": 0, "slowms": int(rule.slow_ms), "sampleRate": rule.sample_rate}
    return shown if query is None else {**shown, "filter": raw_document(query), "note": _NOTE}


def _sample_rate(arguments: Arguments) -> float | None:
    rate = arguments.maybe_number(b"sampleRate")
    if rate is not None and not 0 <= rate <= 1:
        raise CommandError(ErrorCode.BadValue, "'sampleRate' must be between 0.0 and 1.0 inclusive")
    return rate


def _filter(operation: Operation, arguments: Arguments) -> bytes | str | None:
    """The raw filter on the operations to log, ``unset`` to remove it, None to leave it.

    Raises:
        CommandError: BadValue.
    """
    if not arguments.has(_FILTER):
        return None
    chosen = arguments.value(_FILTER)
    if chosen == _UNSET:
        return _UNSET
    if not isinstance(chosen, dict):
        raise CommandError(ErrorCode.BadValue, "Expected an object, or the string 'unset'.")
    return operation.request.raw_object(_FILTER)


async def _parsed(operation: Operation, query: bytes) -> bytes:
    """A filter as a mongod shows it once it has parsed it.

    Raises:
        CommandError: the mongod refused it; or no mongod answered.
    """
    context = operation.context
    if is_from_sibling(operation.request):
        return query
    shard_id = (await context.shards.ids_as_told())[0]
    # Each database of a mongod has its own filter, whether it exists or not.
    db = f"parsed_{ObjectId()}"
    for value in (raw_document(query), _UNSET):
        body = bson.encode({"profile": _UNCHANGED, "filter": value, "$db": db})
        reply = await context.sender.send(shard_id, op_msg(body, request_id=next_request_id()), may_repeat=True)
        reply.raise_for_error()
    span = reply.fields[_FILTER]
    return reply.body[span[2] : span[3]]


@command("setProfilingFilterGlobally")
async def set_profiling_filter_globally(operation: Operation) -> Reply:
    """Not available, as on every server that was not started with a parameter for it."""
    raise CommandError(_KNOB_IS_OFF, "setProfilingFilterGlobally command requires query knob to be enabled")
