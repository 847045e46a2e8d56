"""Running the statements of multi-document transactions, and what a genuine shard does to them that mongod does not.

* ``coordinator: true`` is cut off.
* Replies have ``readOnly``, by which the router decides how to commit.
* Errors of the daemon itself have the label of transient ones, and abort the transaction.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from bson.int64 import Int64

from shardwright.daemon.sidecar.upstream import Upstream
from shardwright.shardd.transactions.changes import has_changed
from shardwright.shardd.transactions.labels import ENDS, label_error
from shardwright.shardd.transactions.open_transactions import OpenTransaction, OpenTransactions
from shardwright.shardd.transactions.session_keys import session_key
from shardwright.sharding.commit_protocol import COORDINATOR
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import BOOL, append, element, without
from shardwright.wire.request import Request
from shardwright.wire.transport.client import response_body
from shardwright.wire.transport.request_loop import may_run_in_reactor

AUTOCOMMIT: Final = b"autocommit"

_FAILED: Final = b"\x01ok\0" + bytes(8)
_BODY_ELEMENTS_AT: Final = 25
_READ_ONLY: Final = {value: element(b"readOnly", BOOL, bytes([value])) for value in (False, True)}
_ENDING: Final = frozenset({"abortTransaction", "commitTransaction"})

Run = Callable[[Request], Awaitable[bytes | None]]


class TransactionStatements:
    """Runs the statements of transactions.

    Args:
        transactions: the open transactions.
    """

    def __init__(self, transactions: OpenTransactions) -> None:
        self._transactions = transactions

    @may_run_in_reactor
    async def run(self, upstream: Upstream, request: Request, run: Run) -> bytes | None:
        """Run a command with ``autocommit``; returns the frame of the reply.

        Args:
            upstream: the client's connection to mongod.
            request: the command.
            run: runs it as if it were outside a transaction.

        Raises:
            CommandError: as ``run``, with the label that the error has in a transaction.
            BackendError: as ``run``.
        """
        if COORDINATOR in request.fields:
            request = request.with_body(without(request.body, {COORDINATOR}))
        transaction = self._transaction(request)
        try:
            reply = await run(request)
        except CommandError as error:
            label_error(error, request.name)
            if transaction is not None and request.name not in ENDS and error.code != ErrorCode.WouldChangeOwningShard:
                await self._abort(upstream, request, transaction)
            raise
        if transaction is None or reply is None:
            return reply
        return self._observe(transaction, request, reply)

    def _transaction(self, request: Request) -> OpenTransaction | None:
        """The transaction of a command; None if the command is malformed or not of an open transaction."""
        fields, number = request.fields, request.get(b"txnNumber")
        session = session_key(request.body, fields[b"lsid"]) if b"lsid" in fields else None
        if session is None or not isinstance(number, Int64):
            return None
        found = self._transactions.find(session, number)
        if found is None and request.get(b"startTransaction") is True:
            return self._transactions.begin(session, number)
        return found

    def _observe(self, transaction: OpenTransaction, request: Request, reply: bytes) -> bytes:
        has_failed = reply.startswith(_FAILED, _BODY_ELEMENTS_AT)
        if request.name in ENDS:
            if request.name in _ENDING and not has_failed:
                self._transactions.end(transaction)
            return reply
        if has_failed or request.name == "getMore":
            return reply  # reading on changes nothing, and a long reply has been passed on already
        if not transaction.has_written and has_changed(request.name, response_body(reply)):
            transaction.has_written = True
        return with_elements(reply, _READ_ONLY[not transaction.has_written])

    @may_run_in_reactor
    async def _abort(self, upstream: Upstream, request: Request, transaction: OpenTransaction) -> None:
        """Abort a transaction after an error of the daemon, which mongod does not know of."""
        fields = ("lsid", "txnNumber")
        abort: Mapping[str, Any] = {"abortTransaction": 1, **{name: request.get(name.encode()) for name in fields}}
        with suppress(CommandError):  # it has not begun on mongod, or has ended already
            await upstream.command("admin", {**abort, "autocommit": False})
        self._transactions.end(transaction)


def with_elements(frame: bytes, elements: bytes) -> bytes:
    """A reply with elements added to its body."""
    request_id, response_to = (int.from_bytes(frame[at : at + 4], "little") for at in (4, 8))
    return op_msg(append(response_body(frame), elements), request_id=request_id, response_to=response_to)
