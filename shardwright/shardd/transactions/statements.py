"""Running the statements of transactions, with the additions of a genuine shard to a plain mongod.

* Replies have ``readOnly``, by which the router decides how to commit.
* Errors of the daemon itself are labelled as transient, and abort the transaction.
* The table of open transactions is kept up to date.

A reply shows whether its statement has changed anything. A genuine shard examines the transaction's operations instead.
The reply of a findAndModify does not distinguish an update without effect, so that counts as a change. The shard then
takes part in the commit as one that has written.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from bson.int64 import Int64
from bson.timestamp import Timestamp

from shardwright.daemon.sidecar.reply_term import has_failed
from shardwright.daemon.sidecar.upstream import Upstream
from shardwright.shardd.transactions.open_transactions import OpenTransaction, OpenTransactions
from shardwright.shardd.transactions.session_keys import as_for_mongod, session_fields, transaction_of
from shardwright.sharding.involved_namespaces import asks_for_another_way
from shardwright.sharding.operation_session import START_TRANSACTION
from shardwright.sharding.transaction_protocol import label_transient, with_read_only
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import TRANSIENT_TRANSACTION_ERROR, CommandError
from shardwright.wire.rawbson import Span, decode_value, find, index
from shardwright.wire.request import Request
from shardwright.wire.transport.client import response_body
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor

_COUNTED: Final[Mapping[str, tuple[bytes, ...]]] = {
    "insert": (b"n",),
    "update": (b"nModified", b"upserted"),
    "delete": (b"n",),
}
"""By write command: the fields of its reply that are not zero if it has changed something."""


def has_changed(command: str, reply: bytes) -> bool:
    """Whether a successful statement has changed something."""
    counted = _COUNTED.get(command)
    if counted is not None:
        return any(_is_counted(reply, find(reply, name)) for name in counted)
    is_change = _OTHER_CHANGES.get(command)
    return is_change is not None and is_change(reply, index(reply))


def _is_counted(reply: bytes, count: Span | None) -> bool:
    return count is not None and bool(decode_value(reply, count))


def _has_modified(reply: bytes, fields: Mapping[bytes, Span]) -> bool:
    outcome = fields.get(b"lastErrorObject")
    return outcome is not None and _is_counted(reply, find(reply, b"n", outcome[2]))


def _has_created_indexes(reply: bytes, fields: Mapping[bytes, Span]) -> bool:
    before, after = (fields.get(name) for name in (b"numIndexesBefore", b"numIndexesAfter"))
    if before is None or after is None or b"createdCollectionAutomatically" in fields:
        return True
    return bool(decode_value(reply, before) != decode_value(reply, after))


_OTHER_CHANGES: Final[Mapping[str, Callable[[bytes, Mapping[bytes, Span]], bool]]] = {
    "create": lambda reply, fields: True,
    "createIndexes": _has_created_indexes,
    "findAndModify": _has_modified,
    "findandmodify": _has_modified,
}


_WRITE_ERRORS: Final = b"writeErrors"
_BATCHES: Final = frozenset({"delete", "insert", "update"})

BEFORE_ALL_PREPARED: Final = Timestamp(1, 1)
"""A commit timestamp that is earlier than any prepared transaction."""

Run = Callable[[Request, OpenTransaction | None], Awaitable[bytes | None]]


class TransactionStatements:
    """The execution of transactions' statements."""

    def __init__(self, transactions: OpenTransactions) -> None:
        self._transactions = transactions

    @may_run_in_reactor
    async def run(self, client: ClientConnection, upstream: Upstream, request: Request, run: Run) -> bytes | None:
        """Run a statement; return the reply frame.

        Args:
            run: runs it as part of a transaction. The table has an entry for it unless the statement is malformed or
                the transaction is not open.

        Raises:
            CommandError: as ``run``, with the label that the error has in a transaction; ClientDisconnect, the
                transaction does not begin any more.
            BackendError: as ``run``.
        """
        request = as_for_mongod(request)
        transaction = await self._enter(client, upstream, request)
        if transaction is None:
            return await self._run_labelled(request, None, run)
        transaction.is_doubtful = True  # unless it is answered
        try:
            with transaction.command_under_way():
                reply = await self._run_labelled(request, transaction, run)
        except CommandError as error:
            if transaction.is_killed or not _goes_on_after(error, transaction):
                await self._abort(upstream, session_fields(request), transaction)
                if transaction.is_killed:
                    # A router would hide errors that make it begin again, such as stale versions.
                    raise _interrupted() from error
                raise
            self._observe(transaction, has_failed=False)
            error.extra = {**error.extra, "readOnly": not transaction.has_written}
            raise
        if transaction.is_killed:
            return await self._after_kill(upstream, transaction, request, reply)
        return None if reply is None else await self._answer(upstream, transaction, request, reply)

    @may_run_in_reactor
    async def _after_kill(
        self, upstream: Upstream, transaction: OpenTransaction, request: Request, reply: bytes | None
    ) -> bytes | None:
        """Abort a transaction killed before this statement reached mongod; Interrupted unless the statement failed."""
        await in_own_task()
        await self._abort(upstream, session_fields(request), transaction)
        if reply is None or has_failed(reply):
            return reply
        raise _interrupted()

    @may_run_in_reactor
    async def end_older(self, upstream: Upstream, request: Request) -> None:
        """Abort the open transaction of a session before a command with a newer number.

        mongod would do so itself on receiving the command. But the command may have to wait for a critical section,
        which waits for the transaction.
        """
        identity = transaction_of(request)
        if identity is not None:
            await self._end_before(upstream, request, *identity)

    @may_run_in_reactor
    async def _end_before(self, upstream: Upstream, request: Request, session: bytes, number: int) -> None:
        older = self._transactions.latest(session)
        if older is None or older.number >= number or older.is_prepared:
            return
        await self._abort(upstream, {**session_fields(request), "txnNumber": Int64(older.number)}, older)

    @may_run_in_reactor
    async def _enter(self, client: ClientConnection, upstream: Upstream, request: Request) -> OpenTransaction | None:
        """Return the transaction of a statement, created by the first one; None if mongod refuses the statement.

        Raises:
            CommandError: ClientDisconnect, the router has disconnected. It may have aborted the transaction already, on
                a connection whose command was read earlier, so nothing would end the transaction. WriteConflict,
                another router executes the same retryable write in a transaction. mongod runs one command at a time for
                all child sessions of a session. The two could deadlock, one waiting for documents that the other has
                prepared, the other for its turn to commit.
        """
        identity = transaction_of(request)
        if identity is None:
            return None
        found = self._transactions.find(*identity)
        if found is not None:
            return found
        if START_TRANSACTION not in request.fields:
            await self._end_forgotten(upstream, request)
            return None
        await self._end_before(upstream, request, *identity)
        await self._transactions.wait_turn()
        found = self._transactions.find(*identity)
        if found is not None:
            return found  # of the same statement, sent twice
        if client.stream.has_peer_left:
            raise CommandError(ErrorCode.ClientDisconnect, "the client has disconnected")
        transaction = OpenTransaction(*identity)
        other = self._transactions.of_same_write(transaction)
        if other is not None:
            other.is_doubtful = True  # a retry at the level of the session aborts it unnoticed
            raise CommandError(
                ErrorCode.WriteConflict,
                "the same retryable write is being executed in another transaction",
                labels=(TRANSIENT_TRANSACTION_ERROR,),
            )
        latest = self._transactions.latest(transaction.session)
        if latest is not None and latest.number > transaction.number:
            return None  # mongod refuses it
        self._transactions.add(transaction)
        return transaction

    @may_run_in_reactor
    async def _run_labelled(self, request: Request, transaction: OpenTransaction | None, run: Run) -> bytes | None:
        try:
            return await run(request, transaction)
        except CommandError as error:
            label_transient(error, is_ending=False)
            raise

    @may_run_in_reactor
    async def _answer(self, upstream: Upstream, transaction: OpenTransaction, request: Request, reply: bytes) -> bytes:
        is_failure = has_failed(reply)
        if not is_failure and request.name in _BATCHES and _has_write_errors(reply):
            # mongod has aborted it, unless the daemon added the error.
            await self._abort(upstream, session_fields(request), transaction)
            return reply
        self._observe(transaction, has_failed=is_failure)
        if is_failure or request.name == "getMore":
            return reply  # reading on changes nothing, and a long reply has been relayed already
        if not transaction.has_written and has_changed(request.name, response_body(reply)):
            transaction.has_written = True
        return with_read_only(reply, is_read_only=not transaction.has_written)

    @may_run_in_reactor
    async def _end_forgotten(self, upstream: Upstream, request: Request) -> None:
        """Abort the transaction of a request if it is still open on mongod, though it is not in the table.

        Its effects are unknown, and no critical section has waited for it since its entry was removed. mongod refuses
        the commit because of its timestamp, which ends an unprepared transaction but not a prepared one.
        """
        probe = {"commitTransaction": 1, **session_fields(request), "commitTimestamp": BEFORE_ALL_PREPARED}
        with suppress(CommandError):
            await upstream.command("admin", probe)

    def _observe(self, transaction: OpenTransaction, *, has_failed: bool) -> None:
        """Record whether the transaction is open after a statement; a failed later one leaves that uncertain."""
        if not has_failed:
            transaction.has_begun = True
            transaction.is_doubtful = False
        elif not transaction.has_begun:
            self._transactions.end(transaction)

    @may_run_in_reactor
    async def _abort(self, upstream: Upstream, fields: dict[str, Any], transaction: OpenTransaction) -> None:
        """Abort a transaction that has failed or is superseded, perhaps before it reached mongod."""
        if transaction.is_prepared:
            return  # its coordinator decides
        with transaction.command_under_way(), suppress(CommandError):  # it may never have begun, or has ended
            await upstream.command("admin", {"abortTransaction": 1, **fields})
        self._transactions.end(transaction)


def _interrupted() -> CommandError:
    return CommandError(ErrorCode.Interrupted, "operation was interrupted")


def _goes_on_after(error: CommandError, transaction: OpenTransaction) -> bool:
    """Whether a transaction stays open after an error of the daemon, because the router then takes another approach.

    After a read that no single shard can run, it stays open only if it has begun. If this was the first statement here,
    the router may never return, and if it does, it begins the transaction.
    """
    if error.code == ErrorCode.WouldChangeOwningShard:
        return True
    return transaction.has_begun and asks_for_another_way(error)


def _has_write_errors(reply: bytes) -> bool:
    # The ``_id`` of an upserted document may have a field of that name too.
    return _WRITE_ERRORS in reply and find(response_body(reply), _WRITE_ERRORS) is not None
