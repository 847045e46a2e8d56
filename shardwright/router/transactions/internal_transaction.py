"""Transactions of the router itself, repeated until they have been committed or cannot be.

The statements are a function of a `RouterTransaction`. It may be called several times, each time for another attempt:
as in MongoDB, an attempt that failed for a passing reason is followed by one with the next number, and a commit whose
outcome is not known by the same commit.

A statement of a client's transaction does not need this: the router runs its parts in that transaction, and the client
repeats the whole.
"""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import trio

from shardwright.daemon.backoff import Backoff
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.router.sending.shard_sender import ShardSender
from shardwright.router.transactions.abort import abort_implicitly
from shardwright.router.transactions.commit import commit, is_unknown
from shardwright.router.transactions.router_transaction import RouterTransaction
from shardwright.sharding.transient_errors import label_transient
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import TRANSIENT_TRANSACTION_ERROR, CommandError
from shardwright.wire.rawbson import encode_document

T = TypeVar("T")

ATTEMPTS_MAX: Final = 120
"""As MongoDB's limit for its own transactions; of all attempts, and of all commits of one attempt."""

_PAUSE_SECONDS_FIRST: Final = 0.005
_PAUSE_SECONDS_MAX: Final = 1.0
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
    backoff = Backoff(_PAUSE_SECONDS_FIRST, _PAUSE_SECONDS_MAX)
    numbers = range(ATTEMPTS_MAX) if number is None else (number,)
    for each in numbers:
        transaction = RouterTransaction(lsid, each, _LOCAL)
        try:
            result = await _executed(sender, transaction, statements)
            return result, await _committed(sender, transaction, commit_elements)
        except CommandError as error:
            if each == numbers[-1] or TRANSIENT_TRANSACTION_ERROR not in error.labels:
                raise _without_transient_label(error) from error
        await backoff.pause()
    raise AssertionError("unreachable")


async def _executed(
    sender: ShardSender, transaction: RouterTransaction, statements: Callable[[RouterTransaction], Awaitable[T]]
) -> T:
    try:
        return await statements(transaction)
    except CommandError as error:
        label_transient(error, is_ending=False)
        if error.code == ErrorCode.RetryableTransactionInProgress:
            error.labels = (*error.labels, TRANSIENT_TRANSACTION_ERROR)
        await abort_implicitly(sender, transaction)
        raise
    except (Exception, trio.Cancelled):
        with trio.CancelScope(shield=True):
            await abort_implicitly(sender, transaction)
        raise


async def _committed(sender: ShardSender, transaction: RouterTransaction, elements: bytes) -> ShardReply | None:
    """Commit, again and again as long as the outcome is unknown.

    Raises:
        CommandError: the transaction was aborted, labelled as transient; or the outcome stayed unknown.
    """
    backoff = Backoff(_PAUSE_SECONDS_FIRST, _PAUSE_SECONDS_MAX)
    for attempts_left in range(ATTEMPTS_MAX - 1, -1, -1):
        try:
            return await commit(sender, transaction, elements)
        except CommandError as error:
            if not is_unknown(error):
                label_transient(error, is_ending=True)
                raise
            if not attempts_left:
                raise _without_transient_label(error) from error
        await backoff.pause()
    raise AssertionError("unreachable")


def _without_transient_label(error: CommandError) -> CommandError:
    """The error for a client, which knows nothing of the transaction that the label is about."""
    error.labels = tuple(label for label in error.labels if label != TRANSIENT_TRANSACTION_ERROR)
    return error
