"""Running the commands that end a transaction, or prepare its end.

Whether a transaction is prepared decides who may end it. So nobody else may end it while it is being prepared, and it
is prepared only when no command that might end it is still on its way.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from shardwright.shardd.transactions.guards import check_abort, check_commit, check_prepare, coordinator_of
from shardwright.shardd.transactions.open_transaction import OpenTransaction
from shardwright.shardd.transactions.open_transactions import OpenTransactions
from shardwright.shardd.transactions.request_fields import as_for_mongod, transaction_of
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.rawbson import decode_value, index
from shardwright.wire.request import Request
from shardwright.wire.transport.client import response_body
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor

PREPARE: Final = "prepareTransaction"
COMMIT: Final = "commitTransaction"
ABORT: Final = "abortTransaction"
ENDINGS: Final = frozenset({ABORT, COMMIT, PREPARE})

_NOT_PREPARED: Final = frozenset(
    {ErrorCode.NoSuchTransaction, ErrorCode.OperationNotSupportedInTransaction, ErrorCode.TransactionCommitted}
)
"""The errors by which mongod says that there is nothing to decide (any more)."""

Run = Callable[[Request], Awaitable[bytes | None]]


class TransactionEndings:
    """Runs them.

    Args:
        transactions: the open transactions.
    """

    def __init__(self, transactions: OpenTransactions) -> None:
        self._transactions = transactions

    @may_run_in_reactor
    async def run(self, client: ClientConnection, request: Request, run: Run) -> bytes | None:
        """Run one of them; returns the frame of the reply.

        Args:
            client: the connection that it arrived on.
            request: the command.
            run: has mongod execute it.

        Raises:
            CommandError: the client may not do that (`guards`).
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
