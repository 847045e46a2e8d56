"""How both sides of a migration treat servers that cannot be reached."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import trio

from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import BackendError, CommandError, RemoteProtocolError

Result = TypeVar("Result")

_PAUSE_SECONDS_MIN: Final = 0.05
_PAUSE_SECONDS_MAX: Final = 5.0
_ATTEMPTS_MAX: Final = 8
"""With doubling pauses, network errors are tolerated for some ten seconds, plus the time to find a primary."""


def is_transient(error: CommandError) -> bool:
    """Whether a server could not be reached or is not ready, so that the command may succeed a little later."""
    return has_category(error.code, Category.RETRYABLE) or error.code == ErrorCode.FailedToSatisfyReadPreference


def as_command_error(error: CommandError | BackendError | RemoteProtocolError) -> CommandError:
    """An error in the form in which requests are answered with it."""
    return error if isinstance(error, CommandError) else CommandError(ErrorCode.HostUnreachable, str(error))


async def repeated(ask: Callable[[], Awaitable[Result]], on_failure: Callable[[CommandError], None]) -> Result:
    """Run an idempotent request, and retry it for a while when the network fails.

    Args:
        ask: sends the request.
        on_failure: called with the error before each pause.

    Raises:
        CommandError: raised by ``ask``, if it is not transient or that was the last attempt.
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
