"""Who may prepare transactions and decide prepared ones: only the coordinator of their commit.

A mongod takes these commands from anyone. A client that prepared a transaction would leave it without a coordinator,
and so for ever; one that decided a prepared transaction would tear it from its other participants.
"""

import time
from typing import Any, Final

from bson.timestamp import Timestamp

from shardwright.sharding.commit_protocol import COORDINATED_BY
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.request import Request
from shardwright.wire.transport.client_connection import ClientConnection

SHARD_DAEMON: Final = "shardwright-shardd"
"""The name by which shard daemons introduce themselves (``client.application.name``)."""

DRIFT_SECONDS_MAX: Final = 31_536_000
"""The default of ``maxAcceptableLogicalClockDriftSecs``: a mongod's clock jumps to any commit timestamp."""

_COMMIT_TIMESTAMP: Final = b"commitTimestamp"


def is_from_coordinator(client: ClientConnection, request: Request) -> bool:
    """Whether a command is that of a transaction's coordinator, which is a shard daemon."""
    if COORDINATED_BY not in request.fields:
        return False
    application: Any = (client.metadata or {}).get("application")
    return isinstance(application, dict) and application.get("name") == SHARD_DAEMON


def check_prepare(*, is_coordinator: bool) -> None:
    """Refuse ``prepareTransaction`` from others than a coordinator.

    Raises:
        CommandError: Unauthorized.
    """
    if not is_coordinator:
        raise _unauthorized("prepareTransaction")


def check_commit(request: Request, *, is_coordinator: bool, is_prepared: bool) -> None:
    """Refuse to commit a prepared transaction for others than its coordinator, or far in the future.

    Raises:
        CommandError: Unauthorized; ClusterTimeFailsRateLimiter; PreparedTransactionInProgress.
    """
    timestamp = request.get(_COMMIT_TIMESTAMP)
    if timestamp is None:
        if is_prepared and not is_coordinator:
            raise _is_prepared("commit")
        return
    if not is_coordinator:
        raise _unauthorized("commitTransaction with a commitTimestamp")
    if isinstance(timestamp, Timestamp) and timestamp.time - time.time() > DRIFT_SECONDS_MAX:
        raise CommandError(
            ErrorCode.ClusterTimeFailsRateLimiter,
            f"commitTimestamp, {timestamp.time}, is too far from this node's wall clock time, {int(time.time())}.",
        )


def check_abort(*, is_coordinator: bool, is_prepared: bool) -> None:
    """Refuse to abort a prepared transaction for others than its coordinator.

    Raises:
        CommandError: PreparedTransactionInProgress.
    """
    if is_prepared and not is_coordinator:
        raise _is_prepared("abort")


def _unauthorized(what: str) -> CommandError:
    return CommandError(ErrorCode.Unauthorized, f"not authorized: only a transaction's coordinator may run {what}")


def _is_prepared(what: str) -> CommandError:
    return CommandError(
        ErrorCode.PreparedTransactionInProgress,
        f"Cannot {what} a prepared transaction: only the coordinator of its commit decides",
    )
