"""``logRotate``: a new log file for this router, all its processes included."""

from typing import Final

from shardwright.daemon.log_rotation import FAILED, rotate_logs_for_client
from shardwright.router.commands.command_registry import command
from shardwright.router.operations.operation import Operation
from shardwright.router.processes.workers import tell_supervisor_log_was_rotated
from shardwright.router.replies.own_reply import Reply
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.field_errors import wrong_type
from shardwright.wire.rawbson import BOOL, DECIMAL128, DOUBLE, INT32, INT64, STRING
from shardwright.wire.request import Request
from shardwright.wire.type_names import type_name

_NAME: Final = b"logRotate"
_KINDS: Final = frozenset({BOOL, INT32, INT64, DOUBLE, DECIMAL128, STRING})
_SERVER: Final = "server"
"""The only log; a genuine server may have an audit log too."""


@command("logRotate", admin_only=True)
async def log_rotate(operation: Operation) -> Reply:
    """Rotates the log file."""
    _check(operation.request)
    rotate_logs_for_client()
    tell_supervisor_log_was_rotated(operation.context.options)
    return {}


def _check(request: Request) -> None:
    kind = request.fields[_NAME][0]
    if kind not in _KINDS:
        raise wrong_type("logRotate.logRotate", kind, type_name(BOOL), type_name(STRING))
    Arguments.of(request, "logRotate").refuse_unknown((_NAME,))
    if kind == STRING and request.get(_NAME) != _SERVER:
        raise CommandError(ErrorCode.NoSuchKey, FAILED)
