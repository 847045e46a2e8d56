"""Critical sections: their common driver, and the gate that blocks operations until they are restored.

As in MongoDB's ``ShardingRecoveryService``, a section is entered, promoted to block reads too, and left. Each step
names the section's reason and may be repeated. A change uses the steps that it needs. It declares the operations to
wait for (`Drain`) and the time limits (`Limits`). All sections end with the term. The next primary enters the persisted
ones again before it admits operations.

====================== ========== ============================== ==================== ================================
Section of             Blocks     Waits for                      Reads wait           Restored from
====================== ========== ============================== ==================== ================================
a migration's donor    collection writes, cross-shard commits    during the commit    ``migrationCoordinators``
its recipient          collection nothing                        once it is complete  ``migrationRecipients``
``movePrimary``        database   index creations, writes        during the commit    the coordinator's document
resharding             collection writes, without a limit        after the copy       the operation's documents
blocks, sharded rename collection writes, transactions longer    at once              their documents
create                 collection writes                         at once              the coordinator's document
other rename           collection writes                         at once              nothing: mongod renames or not
drops                  both       nothing: they end the writes   at once              nothing: the drop is repeated
====================== ========== ============================== ==================== ================================

A running write may take minutes: an index build, an update of all documents, a write concern that cannot be met. Other
operations must not wait that long for the change. So new writes are soon admitted again, and the change retries later.
DDL fails with LockBusy after five minutes, as MongoDB does if it waits for a DDL lock.

**After a failover.** A migration that was about to commit may have given a range away. Until its critical section is
restored, writes must not run, and no refresh may admit reads. `RecoveryGate` blocks them until the persisted state has
been read from the local mongod; it waits for no other server. It blocks the commands of coordinators and other shards
too, because a section that one of them entered earlier would be in the way of a restored one.

**Renames.** The mongods of different shards rename at different moments. A read that was admitted before may find the
collection on one shard and nothing on another, so its replies must not be merged (`supersede_reads`).
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from math import inf
from typing import Any, Final, Generic, NamedTuple, TypeVar

import trio

from shardwright.daemon.backoff import Backoff
from shardwright.shardd.metadata.namespace_state import BlockableState, CriticalSection, NamespaceState
from shardwright.sharding.routing_table import RoutingTable
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("shardd.critical_sections")

RENAME: Final = "rename"
"""The ``command`` in the reason of a rename's critical section."""

READS_SECONDS_MAX: Final = 1.0
"""Wait for running reads; waiting is cheaper than repeating them."""

CRITICAL_SECTIONS: Final = "collection_critical_sections"
"""The collection of ``config`` with the critical sections that the next primary has to restore, by namespace."""

TRANSACTION_SECONDS_MAX: Final = 5.0
"""Time that a transaction's statement waits for a critical section, which usually lasts less than a tenth of it."""

HOLD_SECONDS_MAX: Final = 300.0
"""Time to keep trying before LockBusy."""


class RecoveryGate:
    """Closed from the start of the daemon or a step-down until the critical sections of earlier terms are recovered.

    Args:
        is_primary: returns whether the local mongod is primary.

    Attributes:
        is_open: whether this is a primary that has recovered.
    """

    __slots__ = ("_is_primary", "_opened", "is_open")

    def __init__(self, is_primary: Callable[[], bool]) -> None:
        self.is_open = False
        self._is_primary = is_primary
        self._opened = trio.Event()

    async def begin_term(self, term: int, nursery: trio.Nursery) -> None:
        """Open the gate: the components that begin a term before it have recovered."""
        self.open()

    def end_term(self) -> None:
        """Close the gate."""
        self.close()

    def open(self) -> None:
        """Open the gate, and wake all waiting operations."""
        self.is_open = True
        self._opened.set()

    def close(self) -> None:
        """Close the gate at the end of the term; operations that still wait fail."""
        self.is_open = False
        waiting, self._opened = self._opened, trio.Event()
        waiting.set()

    async def wait_open(self) -> None:
        """Return when the gate is open, or raise NotWritablePrimary if the local mongod is not primary (any more)."""
        while not self.is_open:
            if not self._is_primary():
                raise CommandError(ErrorCode.NotWritablePrimary, "not primary")
            await self._opened.wait()


async def supersede_reads(state: NamespaceState) -> None:
    """Wait a short time for running reads; the remaining ones are then answered with StaleConfig."""
    with trio.move_on_after(READS_SECONDS_MAX):
        await state.wait_earlier_operations()
    state.supersede_earlier_reads()


def is_renamed(state: NamespaceState, table: RoutingTable) -> bool:
    """Whether a collection is being renamed, or has been renamed since an operation's admission.

    Args:
        state: the state of the name that the operation was sent to.
        table: the routing table at its admission.
    """
    section = state.critical_section
    if section is not None and section.reason.get("command") == RENAME:
        return True
    return state.is_known and (state.table is None or state.table.collection.uuid != table.collection.uuid)


class Drain(NamedTuple):
    """Running operations that a critical section waits for.

    Attributes:
        wait: returns when they have ended.
        has_transactions: whether open transactions are among them.
    """

    wait: Callable[[], Awaitable[None]]
    has_transactions: Callable[[], bool]


def writers_of(state: NamespaceState) -> Drain:
    """Return the running writes and open transactions of a namespace."""
    return Drain(state.wait_writers_gone, lambda: state.transactions > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Time limits of the waits for running operations, in seconds.

    Attributes:
        attempt: duration of one attempt; until the next one, new writes are admitted again.
        transactions: additional time in an attempt while transactions are open.
        delays: total duration of attempts delayed by transactions that ends in LockTimeout.
    """

    attempt: float = inf
    transactions: float = 0.0
    delays: float = inf


NO_LIMITS: Final = Limits()

MOVE: Final = Limits(attempt=0.1, delays=0.5)
"""For a move of data that catches up between attempts. MongoDB's donor also waits half a second for its lock."""

DDL: Final = Limits(attempt=0.5)
"""For a change on this shard."""

DDL_ON_ALL_SHARDS: Final = Limits(attempt=0.5, transactions=TRANSACTION_SECONDS_MAX + 1.0)
"""For a change of several shards, where open transactions may be waiting for the same change on another shard.

The other shards enter the same section, so transactions that are open here and wait there end soon. New transactions
admitted here would then wait there too, and clients repeat a failed transaction at once, so there would always be some.
The wait is not longer, because other writes may be waiting for these transactions.
"""

State = TypeVar("State", bound=BlockableState)


class SectionDriver(Generic[State]):
    """The critical section of one change on a namespace or database. Another driver with the same reason may end it.

    Args:
        reason: distinguishes it from every other section.
        drains: the running operations to wait for, one after the other.
        forget: drops the metadata before waiting operations are released.

    Attributes:
        seconds: its duration, once it has been left, including the attempts after which writes were admitted again.
    """

    def __init__(
        self,
        state: State,
        reason: Mapping[str, Any],
        limits: Limits = NO_LIMITS,
        drains: Sequence[Drain] = (),
        forget: Callable[[], None] | None = None,
    ) -> None:
        self.state = state
        self.seconds = 0.0
        self._reason = reason
        self._limits = limits
        self._drains = drains
        self._forget = forget
        self._entered: CriticalSection | None = None
        self._drained = 0
        self._delayed_seconds = 0.0

    @property
    def section(self) -> CriticalSection | None:
        """The section while it is in effect."""
        section = self.state.critical_section
        return section if section is not None and section.reason == self._reason else None

    @property
    def held_writes(self) -> int:
        """Number of writes that have waited for the section in this term."""
        return 0 if self.section is None else self.section.held_writes

    async def block_writes(self) -> None:
        """Block new writes once no other section is in effect, and wait for the running ones without a limit."""
        self._drained = 0
        self._entered = await self.state.enter_section(self._reason)
        for drain in self._drains:
            await drain.wait()
            self._drained += 1

    async def try_block_writes(self) -> bool:
        """Block new writes and wait for running ones; if they do not end in time, admit writes again and return False.

        Raises:
            CommandError: LockTimeout, transactions have delayed too many attempts; or an error of a drain.
        """
        limits, is_drained, is_delayed = self._limits, False, False
        try:
            is_drained = await self._drained_within(limits.attempt)
            is_delayed = not is_drained and self._has_transactions()
            if is_delayed and limits.transactions:
                is_drained = await self._drained_within(limits.transactions)
        finally:
            if not is_drained:
                self.leave()
        self._delayed_seconds += limits.attempt if is_delayed else 0.0
        if not is_drained and self._delayed_seconds >= limits.delays:
            raise CommandError(
                ErrorCode.LockTimeout,
                f"Failed to acquire the critical section of {self.state.title} within {limits.delays * 1000:g}"
                " milliseconds because of open transactions",
            )
        return is_drained

    async def restore(self) -> None:
        """Block writes and reads again at the beginning of a term.

        There is no wait, because operations and commands are not admitted yet, and persisted sections exclude each
        other. If another section is in effect all the same, that is logged: the commands that could end it may be
        waiting for the recovery.
        """
        other = self.state.critical_section
        if other is not None and self.section is None:
            logger.error(
                "Another critical section is in the way of one to be restored",
                namespace=self.state.title,
                in_effect=str(dict(other.reason)),
                to_be_restored=str(dict(self._reason)),
            )
        await self.close()

    async def close(self) -> None:
        """Block writes and reads once no other section is in effect, without waiting for running operations."""
        self._entered = await self.state.enter_section(self._reason)
        self.block_reads()

    def block_reads(self) -> None:
        """Block new reads too, after `block_writes`. Running reads may still see the state before the change."""
        assert self._entered is not None
        self._entered.blocks_reads = True

    def leave(self) -> None:
        """End the section and release the waiting operations; does nothing outside the section."""
        section = self.section
        if section is not None:
            self.seconds += time.monotonic() - section.began
            if self._forget is not None:
                self._forget()
            self.state.release()

    @asynccontextmanager
    async def closed(self) -> AsyncIterator[None]:
        """Block writes and reads until the block ends, without waiting for running operations.

        Raises LockBusy if another section does not end in time.
        """
        with trio.move_on_after(HOLD_SECONDS_MAX) as patience:
            await self.close()
        if patience.cancelled_caught:
            raise _busy(self.state)
        try:
            yield
        finally:
            self.leave()

    async def _drained_within(self, seconds: float) -> bool:
        with trio.move_on_after(seconds):
            await self.block_writes()
            return True
        return False

    def _has_transactions(self) -> bool:
        """Whether transactions are among the operations that are still running in the section."""
        return self.section is not None and any(
            drain.has_transactions() for drain in self._drains[self._drained : self._drained + 1]
        )


class ExclusiveSection(SectionDriver[NamespaceState]):
    """The critical section of a DDL operation that needs one namespace without running writes."""

    def __init__(self, state: NamespaceState, reason: Mapping[str, Any], limits: Limits = DDL) -> None:
        super().__init__(state, reason, limits, [writers_of(state)])

    @property
    def is_complete(self) -> bool:
        """Whether it blocks reads too."""
        return self.section is not None and self.section.blocks_reads


async def enter_together(sections: Sequence[ExclusiveSection]) -> None:
    """Block writes, wait for running writes, then block reads; does nothing if that has been done already.

    If the running writes of one namespace do not end soon, new ones are admitted again on all of them, and the whole
    sequence is retried later. Until then no namespace has to wait for another one's writes. Raises LockBusy after
    `HOLD_SECONDS_MAX`.
    """
    if all(each.is_complete for each in sections):
        return
    backoff = Backoff(first_seconds=0.1, seconds_max=10.0)
    with trio.move_on_after(HOLD_SECONDS_MAX):
        while (delaying := await _try_to_enter(sections)) is not None:
            logger.info(
                "Running operations are delaying a DDL operation",
                namespace=delaying.namespace,
                writers=delaying.writers,
                other_section=delaying.critical_section is not None,
            )
            await backoff.pause()
        for each in sections:
            each.block_reads()
        return
    [busy, *_] = sorted((each.state for each in sections), key=lambda each: not each.writers)
    what = "another operation's section is in effect" if busy.critical_section else f"{busy.writers} writes are running"
    raise _busy(busy, f": {what}")


async def _try_to_enter(sections: Sequence[ExclusiveSection]) -> NamespaceState | None:
    """Block writes on all namespaces, or on none of them; return the one whose running operations did not end."""
    is_done = False
    try:
        for each in sections:
            if not await each.try_block_writes():
                return each.state
        is_done = True
        return None
    finally:
        if not is_done:
            for each in sections:
                each.leave()


@asynccontextmanager
async def held_exclusively(*sections: ExclusiveSection) -> AsyncIterator[None]:
    """Enter sections together, and leave them at the end of the block.

    At the end the metadata of each namespace is dropped unless it was refreshed in the block, so that waiting
    operations use current metadata.
    """
    await enter_together(sections)
    try:
        with ExitStack() as forgetting:
            for each in sections:
                forgetting.enter_context(_forgetting(each.state))
            yield
    finally:
        for each in sections:
            each.leave()


@asynccontextmanager
async def closed(state: NamespaceState, reason: Mapping[str, Any]) -> AsyncIterator[None]:
    """Block writes and reads until the block ends, without waiting for running ones.

    At the end the metadata is dropped as by `held_exclusively`. Used by a drop, which ends running operations itself
    (`shardd.ddl.participants.drop_here`).
    """
    async with SectionDriver(state, reason).closed():
        with _forgetting(state):
            yield


@contextmanager
def _forgetting(state: NamespaceState) -> Iterator[None]:
    """Drop the metadata after the block, unless the block refreshed it and succeeded."""
    generation = state.generation
    try:
        yield
    except BaseException:
        state.forget()
        raise
    if state.generation == generation:
        state.forget()


def _busy(state: BlockableState, details: str = "") -> CommandError:
    return CommandError(
        ErrorCode.LockBusy,
        f"Failed to acquire the critical section of {state.title} within {HOLD_SECONDS_MAX:g} seconds{details}",
    )
