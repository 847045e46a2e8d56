"""What both sides of a migration make of servers that cannot be reached."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import trio

from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import BackendError, CommandError, RemoteProtocolError

Result = TypeVar("Result")

_PAUSE_SECONDS_MIN: Final = 0.05
_PAUSE_SECONDS_MAX: Final = 5.0
_ATTEMPTS_MAX: Final = 8
"""With doubling pauses, errors of the network are borne for some ten seconds beside what finding a primary takes."""


def is_transient(error: CommandError) -> bool:
    """Whether a server could not be reached or is not ready, so that what was asked may succeed a little later."""
    return has_category(error.code, Category.RETRYABLE) or error.code == ErrorCode.FailedToSatisfyReadPreference


def as_command_error(error: CommandError | BackendError | RemoteProtocolError) -> CommandError:
    """An error in the form that the migration's requester sees."""
    return error if isinstance(error, CommandError) else CommandError(ErrorCode.HostUnreachable, str(error))


async def repeated(ask: Callable[[], Awaitable[Result]], on_failure: Callable[[CommandError], None]) -> Result:
    """Do what may be repeated, and repeat it a while when the network fails.

    Args:
        ask: what is done.
        on_failure: called with the error before each pause.

    Raises:
        CommandError: as ``ask`` does, if it is not transient, or for the last time.
    """
    pause = _PAUSE_SECONDS_MIN
    for _ in range(_ATTEMPTS_MAX - 1):
        try:
            return await ask()
        except CommandError as error:
            if not is_transient(error):
                raise
            on_failure(error)
        await trio.sleep(pause)
        pause = min(pause * 2, _PAUSE_SECONDS_MAX)
    return await ask()
