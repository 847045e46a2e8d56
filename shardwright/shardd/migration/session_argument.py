"""The ``sessionId`` argument, which identifies the migration attempt that a command belongs to."""

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import is_string
from shardwright.wire.request import Request
from shardwright.wire.type_names import type_name


def migration_session_argument(request: Request) -> str:
    """The migration session id that a command names.

    Raises:
        CommandError: NoSuchKey or TypeMismatch.
    """
    span = request.fields.get(b"sessionId")
    if span is None:
        raise CommandError(ErrorCode.NoSuchKey, 'Missing expected field "sessionId"')
    value = request.get(b"sessionId")
    if not is_string(value):
        raise CommandError(
            ErrorCode.TypeMismatch, f'"sessionId" had the wrong type. Expected string, found {type_name(span[0])}'
        )
    return value
