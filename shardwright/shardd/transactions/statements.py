"""Statements of transactions on a plain mongod, with the additions of a genuine shard, and the commands that end them.

**Statements** (`TransactionStatements`):

* Replies have ``readOnly``, by which the router decides how to commit.
* Errors of the daemon itself are labelled as transient, and abort the transaction.
* The table of open transactions is kept up to date.

A reply shows whether its statement has changed anything. A genuine shard examines the transaction's operations instead.
The reply of a findAndModify does not distinguish an update without effect, so that counts as a change. The shard then
takes part in the commit as one that has written.

**Ends** (`TransactionEndings`). Only the coordinator of its commit may prepare a transaction and decide it. So no other
command may end it during the preparation, which waits until no such command is in flight. The coordinator is the shard
that prepared the transaction here. Its next primary continues the commit, under the same name. A mongod accepts these
commands from any client. A client that prepared a transaction would leave it without a coordinator, and thus open for
ever. A client that decided a prepared transaction would break its atomicity.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from bson.int64 import Int64
from bson.timestamp import Timestamp

from shardwright.daemon.sidecar.mongod import Upstream
from shardwright.daemon.sidecar.term_fence import has_failed
from shardwright.shardd.transactions.open_transactions import OpenTransaction, OpenTransactions
from shardwright.shardd.transactions.session_keys import as_for_mongod, session_fields, transaction_of
from shardwright.sharding.pipelines.pipeline import asks_for_another_way
from shardwright.sharding.transaction_protocol import COORDINATED_BY, START_TRANSACTION, label_transient, with_read_only
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import TRANSIENT_TRANSACTION_ERROR, CommandError
from shardwright.wire.rawbson import Span, decode_value, find, index, is_string
from shardwright.wire.request import Request
from shardwright.wire.transport.client import response_body
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.reactor import in_own_task, may_run_in_reactor

SHARD_DAEMON: Final = "shardwright-shardd"
"""The name by which shard daemons introduce themselves (``client.application.name``)."""

DRIFT_SECONDS_MAX: Final = 31_536_000
"""The default of ``maxAcceptableLogicalClockDriftSecs``: a mongod's clock jumps to any commit timestamp."""

_COMMIT_TIMESTAMP: Final = b"commitTimestamp"

_COUNTED: Final[Mapping[str, tuple[bytes, ...]]] = {
    "insert": (b"n",),
    "update": (b"nModified", b"upserted"),
    "delete": (b"n",),
}
"""By write command: the fields of its reply that are not zero if it has changed something."""


def coordinator_of(client: ClientConnection, request: Request) -> str | None:
    """Return the shard whose daemon sends a command as a transaction's coordinator; None for other senders.

    With access control only parts of the cluster get this far (`daemon.sidecar.access`). Without it any
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

RunEnding = Callable[[Request], Awaitable[bytes | None]]


class TransactionEndings:
    """The commands that end or prepare transactions."""

    def __init__(self, transactions: OpenTransactions) -> None:
        self._transactions = transactions

    @may_run_in_reactor
    async def run(self, client: ClientConnection, request: Request, run: RunEnding) -> bytes | None:
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
    async def _run(self, transaction: OpenTransaction, request: Request, run: RunEnding) -> bytes | None:
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

RunStatement = Callable[[Request, OpenTransaction | None], Awaitable[bytes | None]]


class TransactionStatements:
    """The execution of transactions' statements."""

    def __init__(self, transactions: OpenTransactions) -> None:
        self._transactions = transactions

    @may_run_in_reactor
    async def run(
        self, client: ClientConnection, upstream: Upstream, request: Request, run: RunStatement
    ) -> bytes | None:
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
    async def _run_labelled(
        self, request: Request, transaction: OpenTransaction | None, run: RunStatement
    ) -> bytes | None:
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
