"""How both sides of a migration treat servers that cannot be reached."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from shardwright.daemon.backoff import Backoff
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import BackendError, CommandError, RemoteProtocolError

Result = TypeVar("Result")

_ATTEMPTS_MAX: Final = 8
"""Network errors are tolerated for 5 to 12 seconds of pauses, plus the time to find a primary."""


def is_transient(error: CommandError) -> bool:
    """Whether a server could not be reached or is not ready, so that the command may succeed a little later."""
    return has_category(error.code, Category.RETRYABLE) or error.code == ErrorCode.FailedToSatisfyReadPreference


def as_command_error(error: Exception) -> CommandError:
    """An error in the form in which requests are answered with it; InternalError if it is none of our own."""
    if isinstance(error, CommandError):
        return error
    if isinstance(error, BackendError | RemoteProtocolError):
        return CommandError(ErrorCode.HostUnreachable, str(error))
    return CommandError(ErrorCode.InternalError, f"{type(error).__name__}: {error}")


async def repeated(ask: Callable[[], Awaitable[Result]], on_failure: Callable[[CommandError], None]) -> Result:
    """Run an idempotent request, and retry it for a while when the network fails.

    Args:
        ask: sends the request.
        on_failure: called with the error before each pause.

    Raises:
        CommandError: raised by ``ask``, if it is not transient or that was the last attempt.
    """
    backoff = Backoff(first_seconds=0.1, seconds_max=5.0)
    for _ in range(_ATTEMPTS_MAX - 1):
        try:
            return await ask()
        except CommandError as error:
            if not is_transient(error):
                raise
            on_failure(error)
        await backoff.pause()
    return await ask()
