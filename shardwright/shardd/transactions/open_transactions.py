"""The multi-document transactions that are open on this shard.

A session has one transaction at a time: mongod aborts the previous one when a newer number arrives. Only a prepared one
remains, and makes the newer one wait.
"""

from collections.abc import Iterator

import trio

from shardwright.daemon.sidecar.global_lock import GlobalLock
from shardwright.shardd.transactions.open_transaction import OpenTransaction
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor


class OpenTransactions:
    """The table of them.

    Args:
        lock: the global lock of the mongod.
    """

    def __init__(self, lock: GlobalLock) -> None:
        self._lock = lock
        self._all: dict[tuple[bytes, int], OpenTransaction] = {}
        self._latest: dict[bytes, OpenTransaction] = {}
        self._by_retryable_write: dict[bytes, OpenTransaction] = {}
        self._added = trio.Event()

    def __len__(self) -> int:
        """Number of open transactions."""
        return len(self._all)

    def __iter__(self) -> Iterator[OpenTransaction]:
        """The open transactions."""
        return iter(list(self._all.values()))

    def latest(self, session: bytes) -> OpenTransaction | None:
        """The open transaction of a session with the highest number."""
        return self._latest.get(session)

    def find(self, session: bytes, number: int) -> OpenTransaction | None:
        """An open transaction; None if it is not known."""
        return self._all.get((session, number))

    def of_same_write(self, transaction: OpenTransaction) -> OpenTransaction | None:
        """The open transaction of another child session that executes the same retryable write as a new one."""
        write = transaction.retryable_write
        found = None if write is None else self._by_retryable_write.get(write)
        return None if found is None or found.session == transaction.session else found

    def add(self, transaction: OpenTransaction) -> None:
        """Add a transaction that is the latest one of its session."""
        self._all[transaction.session, transaction.number] = transaction
        self._latest[transaction.session] = transaction
        if transaction.retryable_write is not None:
            self._by_retryable_write[transaction.retryable_write] = transaction
        self._lock.begin(transaction)
        self._added.set()

    def end(self, transaction: OpenTransaction) -> None:
        """Forget a transaction that has ended."""
        transaction.end()
        self._lock.end(transaction)
        if self.find(transaction.session, transaction.number) is transaction:
            del self._all[transaction.session, transaction.number]
        if self._latest.get(transaction.session) is transaction:
            del self._latest[transaction.session]
        write = transaction.retryable_write
        if write is not None and self._by_retryable_write.get(write) is transaction:
            del self._by_retryable_write[write]

    def clear(self) -> None:
        """Forget all of them, at the end of a term."""
        for transaction in self:
            self.end(transaction)

    @may_run_in_reactor
    async def wait_turn(self) -> None:
        """Return when a transaction may begin. A change that needs mongod's global lock holds it up for a moment."""
        if self._lock.is_wanted:
            await in_own_task()
            await self._lock.wait_turn()

    async def wait_any(self) -> None:
        """Return when there is an open transaction."""
        while not self._all:
            self._added = trio.Event()
            await self._added.wait()
