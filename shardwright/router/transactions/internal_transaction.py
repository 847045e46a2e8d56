"""Transactions of the router itself (`daemon.internal_transaction`).

The statements are a function of a `RouterTransaction`. It may be called several times, each time for another attempt.

A statement of a client's transaction does not need this: the router runs its parts in that transaction, and the client
repeats the whole.
"""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from shardwright.daemon.internal_transaction import ATTEMPTS_MAX, Attempt, run_attempts
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.router.sending.shard_sender import ShardSender
from shardwright.router.transactions.abort import abort_implicitly, abort_uncommitted
from shardwright.router.transactions.commit import commit, is_unknown
from shardwright.router.transactions.router_transaction import RouterTransaction
from shardwright.sharding.transient_errors import label_transient
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import TRANSIENT_TRANSACTION_ERROR, CommandError
from shardwright.wire.rawbson import encode_document

T = TypeVar("T")

_LOCAL: Final = encode_document({"level": "local"})


async def run_internal_transaction(
    sender: ShardSender,
    lsid: bytes,
    statements: Callable[[RouterTransaction], Awaitable[T]],
    *,
    number: int | None = None,
    commit_elements: bytes = b"",
) -> tuple[T, ShardReply | None]:
    """Run statements in a transaction and commit it; returns their result, and the reply to the commit if any shard
    took part.

    Args:
        sender: the plain one.
        lsid: the raw id of a session that nobody else uses at the same time.
        statements: runs them in the given transaction.
        number: the ``txnNumber`` of the only attempt; by default each attempt has its own.
        commit_elements: the raw elements of the commit: its write concern.

    Raises:
        CommandError: what ``statements`` raises, if it is not a passing failure; the last failure, after too many; or
            that of the commit.
    """

    def begin(each: int) -> _RouterAttempt[T]:
        return _RouterAttempt(sender, RouterTransaction(lsid, each, _LOCAL), statements, commit_elements)

    return await run_attempts(begin, range(ATTEMPTS_MAX) if number is None else (number,))


class _RouterAttempt(Attempt[T, ShardReply | None]):
    def __init__(
        self,
        sender: ShardSender,
        transaction: RouterTransaction,
        statements: Callable[[RouterTransaction], Awaitable[T]],
        commit_elements: bytes,
    ) -> None:
        self._sender = sender
        self._transaction = transaction
        self._statements = statements
        self._commit_elements = commit_elements

    async def run_statements(self) -> T:
        try:
            return await self._statements(self._transaction)
        except CommandError as error:
            label_transient(error, is_ending=False)
            if error.code == ErrorCode.RetryableTransactionInProgress:
                error.labels = (*error.labels, TRANSIENT_TRANSACTION_ERROR)
            raise

    async def abort(self) -> None:
        await abort_implicitly(self._sender, self._transaction)

    async def abort_undecided(self) -> None:
        await abort_uncommitted(self._sender, self._transaction)

    async def commit(self) -> ShardReply | None:
        try:
            return await commit(self._sender, self._transaction, self._commit_elements)
        except CommandError as error:
            if not self.may_be_committed(error):
                label_transient(error, is_ending=True)
            raise

    def may_be_committed(self, error: CommandError) -> bool:
        return is_unknown(error)
