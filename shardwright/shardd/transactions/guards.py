"""Who may prepare transactions and decide prepared ones: only the coordinator of their commit.

That is the shard that had the transaction prepared here. Its next primary goes on with the commit, under the same name.

A mongod takes these commands from anyone. A client that prepared a transaction would leave it without a coordinator,
and so for ever; one that decided a prepared transaction would tear it from its other participants.
"""

import time
from typing import Any, Final

from bson.timestamp import Timestamp

from shardwright.sharding.commit_protocol import COORDINATED_BY
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import is_string
from shardwright.wire.request import Request
from shardwright.wire.transport.client_connection import ClientConnection

SHARD_DAEMON: Final = "shardwright-shardd"
"""The name by which shard daemons introduce themselves (``client.application.name``)."""

DRIFT_SECONDS_MAX: Final = 31_536_000
"""The default of ``maxAcceptableLogicalClockDriftSecs``: a mongod's clock jumps to any commit timestamp."""

_COMMIT_TIMESTAMP: Final = b"commitTimestamp"


def coordinator_of(client: ClientConnection, request: Request) -> str | None:
    """The shard whose daemon sends a command as a transaction's coordinator; None if no shard daemon sends it so.

    With access control only parts of the cluster get as far as this (`daemon.sidecar.internal_requests`). Without it
    any client may say of itself what it likes, so this guards against mistakes alone.
    """
    shard = request.get(COORDINATED_BY)
    application: Any = (client.metadata or {}).get("application")
    is_daemon = isinstance(application, dict) and application.get("name") == SHARD_DAEMON
    return shard if is_daemon and is_string(shard) else None


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
