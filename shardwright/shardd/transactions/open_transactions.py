"""The multi-document transactions that are open on this shard.

A session has one transaction at a time, because mongod aborts the previous one when a newer number arrives. Only a
prepared one remains, and the newer one waits for it.
"""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Self

import trio

from shardwright.daemon.sidecar.user_write_block import GlobalLock
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.shardd.transactions.session_keys import retryable_write_of
from shardwright.wire.transport.reactor import in_own_task, may_run_in_reactor

if TYPE_CHECKING:
    from bson.timestamp import Timestamp


class OpenTransaction:
    """A transaction that has begun on this shard.

    It is inside a namespace from its first statement there to its end. Until then mongod keeps a lock on the
    collection, and the transaction may still commit its writes there.

    Attributes:
        session: see `session_keys.session_key`.
        retryable_write: the key shared by transactions that execute the same retryable write; None if it executes none.
        has_begun: whether mongod has executed a statement of it.
        has_written: whether one of its statements has changed something on this shard.
        is_prepared: whether it is prepared, or may be because a ``prepareTransaction`` is running.
        coordinator: the shard that has prepared it. None before that, or if it did so in an earlier
            term, since mongod does not record it.
        snapshot_time: the cluster time at which it reads; None if it reads the state at its beginning.
        is_killed: whether it was aborted, or its session killed, during a statement that may begin it.
        is_doubtful: whether something failed that may have ended it.
        quiet_since: the time at which its last command was answered (`trio.current_time`); None if one is running.
    """

    __slots__ = (
        "_began",
        "_commands",
        "_ended",
        "_namespaces",
        "_quiet",
        "coordinator",
        "has_begun",
        "has_ended",
        "has_written",
        "is_doubtful",
        "is_killed",
        "is_prepared",
        "number",
        "quiet_since",
        "retryable_write",
        "session",
        "snapshot_time",
    )

    def __init__(self, session: bytes, number: int) -> None:
        self.session = session
        self.number = number
        self.retryable_write = retryable_write_of(session)
        self.has_begun = False
        self.has_written = False
        self.has_ended = False
        self.is_prepared = False
        self.coordinator: str | None = None
        self.is_killed = False
        self.is_doubtful = False
        self.snapshot_time: Timestamp | None = None
        self._began: float | None = None
        self.quiet_since: float | None = None
        self._commands = 0
        self._quiet = trio.lowlevel.ParkingLot()
        self._ended = trio.Event()
        self._namespaces: set[NamespaceState] = set()

    @property
    def has_snapshot(self) -> bool:
        """Whether its first statement has been admitted, so that mongod has opened a snapshot or is about to."""
        return self._began is not None

    def note_snapshot(self, snapshot_time: "Timestamp | None") -> None:
        """Record that its first statement has been admitted, with the cluster time to read at."""
        self._began = time.monotonic()
        self.snapshot_time = snapshot_time

    def is_older_than(self, moment: float) -> bool:
        """Whether mongod opened its snapshot before a moment of the monotonic clock."""
        return self._began is not None and self._began <= moment

    def is_inside(self, state: NamespaceState) -> bool:
        """Whether it has entered a namespace."""
        return state in self._namespaces

    def enter(self, state: NamespaceState) -> None:
        """Count it in a namespace once; the caller is counted there itself."""
        if not self.has_ended and state not in self._namespaces:
            self._namespaces.add(state)
            state.enter_transaction()

    def end(self) -> None:
        """Count it out of all namespaces."""
        self.has_ended = True
        self._ended.set()
        while self._namespaces:
            self._namespaces.pop().exit_transaction()

    async def wait_ended(self) -> None:
        """Wait until it has been committed or aborted."""
        await self._ended.wait()

    def command_under_way(self) -> Self:
        """Return a context in which one of its commands is running; there may be several at a time."""
        return self

    def __enter__(self) -> None:
        """Begin a command."""
        self._commands += 1
        self.quiet_since = None

    def __exit__(self, *_: object) -> None:
        """End a command."""
        self._commands -= 1
        if not self._commands:
            self.quiet_since = trio.current_time()
            if self._quiet:
                self._quiet.unpark_all()

    async def wait_quiet(self) -> None:
        """Wait until none of its commands is running."""
        while self._commands:
            await self._quiet.park()


class OpenTransactions:
    """The table of open transactions."""

    def __init__(self, lock: GlobalLock) -> None:
        self._lock = lock
        self._all: dict[tuple[bytes, int], OpenTransaction] = {}
        self._latest: dict[bytes, OpenTransaction] = {}
        self._by_retryable_write: dict[bytes, OpenTransaction] = {}
        self._added = trio.Event()

    def __len__(self) -> int:
        """Return the number of open transactions."""
        return len(self._all)

    def __iter__(self) -> Iterator[OpenTransaction]:
        """Iterate over the open transactions."""
        return iter(list(self._all.values()))

    def latest(self, session: bytes) -> OpenTransaction | None:
        """Return the open transaction of a session with the highest number."""
        return self._latest.get(session)

    def find(self, session: bytes, number: int) -> OpenTransaction | None:
        """Return an open transaction; None if there is none."""
        return self._all.get((session, number))

    def of_same_write(self, transaction: OpenTransaction) -> OpenTransaction | None:
        """Return the open transaction of another child session that executes the same retryable write as a new one."""
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
        """Remove a transaction that has ended."""
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
        """Remove all transactions at the end of a term."""
        for transaction in self:
            self.end(transaction)

    @may_run_in_reactor
    async def wait_turn(self) -> None:
        """Wait until a transaction may begin. A change that needs mongod's global lock delays it for a moment."""
        if self._lock.is_wanted:
            await in_own_task()
            await self._lock.wait_turn()

    async def wait_any(self) -> None:
        """Wait until there is an open transaction."""
        while not self._all:
            self._added = trio.Event()
            await self._added.wait()
