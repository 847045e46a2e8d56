"""Internal transactions of the router, and the internal sessions for them and for single writes.

A statement of a client's transaction does not need an internal transaction: its parts run in the client's transaction,
and the client repeats the whole. Others run by `daemon.internal_transaction`, which calls a function of a
`RouterTransaction` once for each attempt.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar
from uuid import UUID, uuid4

import bson
from bson.binary import Binary
from bson.int64 import Int64

from shardwright.daemon.internal_transaction import ATTEMPTS_MAX, Attempt, run_attempts
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.router.sending.shard_sender import ShardSender
from shardwright.router.transactions.commit_and_abort import abort_implicitly, abort_uncommitted, commit, is_unknown
from shardwright.router.transactions.router_transaction import RouterTransaction
from shardwright.sharding.logical_sessions import SessionId
from shardwright.sharding.transaction_protocol import label_transient
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import TRANSIENT_TRANSACTION_ERROR, CommandError
from shardwright.wire.rawbson import encode_document, encode_elements


def own_session(lsid: bytes) -> bytes:
    """Return the raw ``lsid`` of a client's session, without the fields of a child session."""
    return bson.encode(SessionId.read(lsid).to_document())


def child_of_retryable_write(lsid: bytes, number: int, unique: UUID) -> bytes:
    """Build the raw ``lsid`` of the child session in which a transaction executes a retryable write.

    When the write itself is retried, the mongods find the results of the transaction's statements with a statement id.

    Args:
        number: the ``txnNumber`` of the write.
        unique: distinguishes transactions for the same write, for example of several routers.
    """
    parent = SessionId.read(lsid).to_document()
    return bson.encode({**parent, "txnNumber": Int64(number), "txnUUID": Binary.from_uuid(unique)})


class WriteSessions:
    """Sessions that make writes without a ``txnNumber`` retryable.

    They are reused, because a mongod keeps each for half an hour.
    """

    def __init__(self) -> None:
        self._free: list[tuple[SessionId, int]] = []

    @contextmanager
    def borrowed(self) -> Iterator[bytes]:
        """Borrow a session for a block; yields the raw elements of a retryable write in it.

        If the block raises, its session is not reused: a shard may still be executing the write, which the next write
        would wait for.
        """
        session, number = self._free.pop() if self._free else (SessionId(uuid4().bytes), 0)
        yield encode_elements({"lsid": session.to_document(), "txnNumber": Int64(number)})
        self._free.append((session, number + 1))


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
    """Run statements in a transaction and commit it.

    Args:
        sender: the sender outside of transactions.
        lsid: the raw id of a session without other concurrent users.
        number: the ``txnNumber`` of the only attempt; by default each attempt has its own.
        commit_elements: the raw elements of the commit: its write concern.

    Returns:
        The statements' result, and the reply to the commit if any shard took part.

    Raises:
        CommandError: raised by ``statements``, unless transient; the last failure, after too many attempts; or the
            error of the commit.
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
