"""Commands that end a transaction, or prepare its end.

A prepared transaction may be ended only by its coordinator. So no other command may end it during the preparation,
which waits until no such command is in flight.

Only the coordinator of its commit may prepare a transaction and decide it. The coordinator is the shard that prepared
the transaction here. Its next primary continues the commit, under the same name. A mongod accepts these commands from
any client. A client that prepared a transaction would leave it without a coordinator, and thus open for ever. A client
that decided a prepared transaction would break its atomicity.
"""

import time
from collections.abc import Awaitable, Callable
from typing import Final

from bson.timestamp import Timestamp

from shardwright.shardd.transactions.open_transactions import OpenTransaction, OpenTransactions
from shardwright.shardd.transactions.session_keys import as_for_mongod, transaction_of
from shardwright.sharding.transaction_protocol import COORDINATED_BY
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import decode_value, index, is_string
from shardwright.wire.request import Request
from shardwright.wire.transport.client import response_body
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor

SHARD_DAEMON: Final = "shardwright-shardd"
"""The name by which shard daemons introduce themselves (``client.application.name``)."""

DRIFT_SECONDS_MAX: Final = 31_536_000
"""The default of ``maxAcceptableLogicalClockDriftSecs``: a mongod's clock jumps to any commit timestamp."""

_COMMIT_TIMESTAMP: Final = b"commitTimestamp"


def coordinator_of(client: ClientConnection, request: Request) -> str | None:
    """Return the shard whose daemon sends a command as a transaction's coordinator; None for other senders.

    With access control only parts of the cluster get this far (`daemon.sidecar.internal_requests`). Without it any
    client may claim any name, so this guards only against mistakes.
    """
    shard = request.get(COORDINATED_BY)
    return shard if client.app_name == SHARD_DAEMON and is_string(shard) else None


def check_prepare(*, is_coordinator: bool) -> None:
    """Refuse ``prepareTransaction`` from any sender but a coordinator (Unauthorized)."""
    if not is_coordinator:
        raise _unauthorized("prepareTransaction")


def check_commit(request: Request, *, is_coordinator: bool, is_prepared: bool) -> None:
    """Refuse to commit a prepared transaction for any sender but its coordinator, or far in the future.

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
    """Refuse to abort a prepared transaction for any sender but its coordinator (PreparedTransactionInProgress)."""
    if is_prepared and not is_coordinator:
        raise _is_prepared("abort")


def _unauthorized(what: str) -> CommandError:
    return CommandError(ErrorCode.Unauthorized, f"not authorized: only a transaction's coordinator may run {what}")


def _is_prepared(what: str) -> CommandError:
    return CommandError(
        ErrorCode.PreparedTransactionInProgress,
        f"Cannot {what} a prepared transaction: only the coordinator of its commit decides",
    )


PREPARE: Final = "prepareTransaction"
COMMIT: Final = "commitTransaction"
ABORT: Final = "abortTransaction"
ENDINGS: Final = frozenset({ABORT, COMMIT, PREPARE})

_NOT_PREPARED: Final = frozenset(
    {ErrorCode.NoSuchTransaction, ErrorCode.OperationNotSupportedInTransaction, ErrorCode.TransactionCommitted}
)
"""mongod's errors if there is nothing to decide (any more)."""

Run = Callable[[Request], Awaitable[bytes | None]]


class TransactionEndings:
    """The commands that end or prepare transactions."""

    def __init__(self, transactions: OpenTransactions) -> None:
        self._transactions = transactions

    @may_run_in_reactor
    async def run(self, client: ClientConnection, request: Request, run: Run) -> bytes | None:
        """Run one of `ENDINGS`; return the reply frame.

        Raises:
            CommandError: the client may not do that.
            BackendError: as ``run``.
        """
        coordinator = coordinator_of(client, request)
        identity = transaction_of(request)
        transaction = None if identity is None else self._transactions.find(*identity)
        is_prepared = transaction is not None and transaction.is_prepared
        known = None if transaction is None else transaction.coordinator
        is_coordinator = coordinator is not None and known in (None, coordinator)
        if request.name == PREPARE:
            check_prepare(is_coordinator=is_coordinator)
        elif request.name == COMMIT:
            check_commit(request, is_coordinator=is_coordinator, is_prepared=is_prepared)
        else:
            check_abort(is_coordinator=is_coordinator, is_prepared=is_prepared)
        request = as_for_mongod(request)
        if transaction is None:
            return await run(request)
        if request.name == PREPARE:
            await in_own_task()
            transaction.is_prepared = transaction.is_doubtful = True
            transaction.coordinator = coordinator
            await transaction.wait_quiet()
        elif request.name == ABORT and not transaction.has_begun:
            transaction.is_killed = True  # it may overtake the statement that begins it
        return await self._run(transaction, request, run)

    @may_run_in_reactor
    async def _run(self, transaction: OpenTransaction, request: Request, run: Run) -> bytes | None:
        transaction.is_doubtful = True  # unless it is answered
        with transaction.command_under_way():
            reply = await run(request)
        if reply is not None:
            self._observe(transaction, request.name, response_body(reply))
        return reply

    def _observe(self, transaction: OpenTransaction, command: str, reply: bytes) -> None:
        fields = index(reply)
        if not decode_value(reply, fields[b"ok"]):
            if b"code" in fields and decode_value(reply, fields[b"code"]) in _NOT_PREPARED:
                self._transactions.end(transaction)
        elif command == PREPARE:
            transaction.is_doubtful = False
        else:
            self._transactions.end(transaction)
