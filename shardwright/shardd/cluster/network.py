"""Transient network errors: classification and retries, for both sides of a migration."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from shardwright.daemon.backoff import Backoff
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import BackendError, CommandError, RemoteProtocolError

Result = TypeVar("Result")

_ATTEMPTS_MAX: Final = 8
"""Attempts before an error is final: 5 to 12 seconds of pauses, plus the time to find a primary."""


def is_transient(error: CommandError) -> bool:
    """Whether a server was unreachable or not ready, so that a retry may succeed."""
    return has_category(error.code, Category.RETRYABLE) or error.code == ErrorCode.FailedToSatisfyReadPreference


def as_command_error(error: Exception) -> CommandError:
    """Convert an error to the CommandError that answers a request; InternalError for a foreign exception."""
    if isinstance(error, CommandError):
        return error
    if isinstance(error, BackendError | RemoteProtocolError):
        return CommandError(ErrorCode.HostUnreachable, str(error))
    return CommandError(ErrorCode.InternalError, f"{type(error).__name__}: {error}")


async def repeated(ask: Callable[[], Awaitable[Result]], on_failure: Callable[[CommandError], None]) -> Result:
    """Run an idempotent request; retry transient errors for a limited time.

    Args:
        ask: sends the request.
        on_failure: called with the error before each pause.

    Raises:
        CommandError: from ``ask``, if the error is not transient or it was the last attempt.
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
