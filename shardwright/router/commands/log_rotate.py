"""``logRotate``: new log files for this router, all its processes included."""

from typing import Final

from shardwright.router.commands.command_registry import command
from shardwright.router.operations.operation import Operation
from shardwright.router.processes.workers import tell_supervisor_logs_were_rotated
from shardwright.router.replies.own_reply import Reply
from shardwright.wire.arguments import Arguments
from shardwright.wire.field_errors import wrong_type
from shardwright.wire.rawbson import BOOL, DECIMAL128, DOUBLE, INT32, INT64, STRING
from shardwright.wire.request import Request
from shardwright.wire.type_names import type_name

_NAME: Final = b"logRotate"
_KINDS: Final = frozenset({BOOL, INT32, INT64, DOUBLE, DECIMAL128, STRING})
"""The types of an argument: a string names one log, anything else means all."""


@command("logRotate", admin_only=True)
async def log_rotate(operation: Operation) -> Reply:
    """Rotates the log and the audit log."""
    options = operation.context.options
    named = _named(operation.request)
    try:
        options.logs.rotate_for_client(named)
    finally:  # one of them may have been rotated although the other could not
        tell_supervisor_logs_were_rotated(options)
    return {}


def _named(request: Request) -> str | None:
    """The log that is to be rotated; None for all."""
    kind = request.fields[_NAME][0]
    if kind not in _KINDS:
        raise wrong_type("logRotate.logRotate", kind, type_name(BOOL), type_name(STRING))
    Arguments.of(request, "logRotate").refuse_unknown((_NAME,))
    return str(request.get(_NAME)) if kind == STRING else None
