"""Running one coordinator until its change is made or given up.

As in MongoDB, the document is removed at the end, even after an error. A change that has passed its point of no return
does not end with an error: it is retried until it is done, or until the term ends and the next primary resumes it.
"""

from typing import Any, Final

import trio

from shardwright.daemon.backoff import Backoff
from shardwright.shardd.ddl.coordinators.coordinator import Coordinator
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import Logger, get_logger

logger = get_logger("shardd.coordinators")

RETRY_SECONDS: Final = 0.5
"""The longest pause before the first retry of a change; it doubles with each further retry."""

RETRY_SECONDS_MAX: Final = 10.0
"""The longest pause before a retry."""


async def run_to_end(coordinator: Coordinator) -> dict[str, Any]:
    """Run a coordinator, with retries if it must finish, and remove its document; returns the reply.

    Raises:
        CommandError: the change could not be made, and nothing of it is left to do; or mongod refuses to remove the
            document, for instance after a step-down.
        BackendError: mongod does not answer when the document is being removed.
    """
    attempt, backoff = 1, Backoff(RETRY_SECONDS, RETRY_SECONDS_MAX)
    while True:
        try:
            reply = await coordinator.run()
            coordinator.is_over = True
            await _remove_document(coordinator)
        except Exception as error:
            failure = _as_command_error(coordinator, error)
        else:
            return reply
        if not coordinator.must_finish:
            coordinator.is_over = True
            await _remove_document(coordinator)
            raise failure
        # A late change is better than a half-done one.
        pause = backoff.next_seconds()
        _logger_of(coordinator).warning(
            "Retrying a DDL operation",
            attempt=attempt,
            code=failure.code,
            error=str(failure),
            retry_seconds=round(pause, 3),
        )
        await trio.sleep(pause)
        attempt += 1


async def _remove_document(coordinator: Coordinator) -> None:
    if coordinator.phase is not None:
        await coordinator.remove_document()


def _as_command_error(coordinator: Coordinator, error: Exception) -> CommandError:
    if isinstance(error, CommandError):
        return error
    if isinstance(error, BackendError):
        return CommandError(ErrorCode.HostUnreachable, str(error))
    _logger_of(coordinator).exception("Internal error in a DDL operation")
    return CommandError(ErrorCode.InternalError, f"{type(error).__name__}: {error}")


def _logger_of(coordinator: Coordinator) -> Logger:
    return logger.bind(namespace=coordinator.id["namespace"], operation=coordinator.operation_type)
