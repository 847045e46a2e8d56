"""``maxTimeMS``, the time limit of a command. Pure."""

from typing import Final

from bson import Decimal128

from shardwright.wire.arguments import Arguments, clamp_int64
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.request import Request

MAX_TIME_MS: Final = b"maxTimeMS"

_LIMIT: Final = (1 << 31) - 1


def max_time_ms(request: Request) -> int:
    """Return the value of ``maxTimeMS``, 0 for no limit.

    A decimal is rounded, whereas a double must be integral. ``aggregate`` parses the field in its own parser first,
    with other errors.

    Raises:
        CommandError: BadValue; for ``aggregate`` also TypeMismatch and 51024.
    """
    if MAX_TIME_MS not in request.fields:
        return 0
    if request.name == "aggregate":
        Arguments.of(request, "aggregate").maybe_integer(MAX_TIME_MS)
    value = request.get(MAX_TIME_MS)
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal128):
        raise CommandError(ErrorCode.BadValue, "maxTimeMS must be a number")
    milliseconds = clamp_int64(value)
    if not 0 <= milliseconds <= _LIMIT:
        raise CommandError(ErrorCode.BadValue, f"{milliseconds} value for maxTimeMS is out of range")
    if isinstance(value, float) and not value.is_integer():
        raise CommandError(ErrorCode.BadValue, "maxTimeMS has non-integral value")
    return milliseconds
