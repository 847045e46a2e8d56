"""Running one coordinator until its change is made or given up.

As in MongoDB, the document is removed at the end, even after an error. A change that has passed its point of no return
does not end with an error: it is retried until it is done, or until the term ends and the next primary resumes it.
"""

from itertools import count
from typing import Any, Final

import trio

from shardwright.shardd.ddl.coordinators.coordinator import Coordinator
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import Logger, get_logger

logger = get_logger("shardd.coordinators")

RETRY_SECONDS: Final = 0.5
"""Pause before the first retry of a change; it doubles with each further retry."""

RETRY_SECONDS_MAX: Final = 10.0


async def run_to_its_end(coordinator: Coordinator) -> dict[str, Any]:
    """Run a coordinator, with retries if it must finish, and remove its document; returns the reply.

    Raises:
        CommandError: the change could not be made, and nothing of it is left to do; or mongod refuses to remove the
            document, for instance after a step-down.
        BackendError: mongod does not answer when the document is being removed.
    """
    for attempt in count():
        try:
            reply = await coordinator.run()
            await _remove_document(coordinator)
        except Exception as error:
            failure = _as_command_error(coordinator, error)
        else:
            return reply
        if not coordinator.must_finish:
            await _remove_document(coordinator)
            raise failure
        # A late change is better than a half-done one.
        pause = min(RETRY_SECONDS * 2 ** min(attempt, 10), RETRY_SECONDS_MAX)
        _logger_of(coordinator).warning(
            "Retrying a DDL operation",
            attempt=attempt + 1,
            code=failure.code,
            error=str(failure),
            retry_seconds=pause,
        )
        await trio.sleep(pause)
    raise AssertionError("attempts are unlimited")


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
