"""The metadata of one namespace on a shard and its running operations, and the table of these states.

Clients can name any number of namespaces that do not exist. Their states can be recreated cheaply, so only some idle
states are kept. A state is never duplicated: it stays in the table while an operation, a refresh or a critical section
refers to it.

A critical section is the short time in which the placement changes and operations have to wait. It first blocks new
writes, so that running writes can drain while reads continue, and then new reads as well.

The metadata is a routing table for a sharded collection, nothing for an unsharded one, or unknown. If it is unknown,
the first operation starts a refresh. Running operations are counted, so that a critical section can wait for the
operations that began before it.

If the metadata is dropped while an operation waits, the operation must not continue as on an unsharded collection. It
would see orphans, and change shard keys that it must not change.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, Self, TypeVar
from weakref import WeakValueDictionary

import trio

from shardwright.shardd.exchange.term_exchange import OperationGeneration
from shardwright.shardd.orphans.ownership_filter import OwnershipFilter, unowned_filter
from shardwright.shardd.orphans.range_deletion_tasks import orphan_ranges
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.versions import IGNORED, UNSHARDED, ChunkVersion, StaleError, stale_config
from shardwright.wire.passages import EPOCH

if TYPE_CHECKING:
    from shardwright.shardd.orphans.range_deletion_tasks import RangeDeletionTask


def mutable_part(pattern: ShardKeyPattern) -> ShardKeyPattern | None:
    """Return the fields of a shard key that mongod allows to change, all but those in ``_id``; None without any."""
    fields = tuple(each for each in pattern.fields if each.path[0] != b"_id")
    return ShardKeyPattern(pattern.document, fields) if fields else None


IDLE_STATES_MAX: Final = 2_000


class Idle(Protocol):
    """A state that can be dropped when it is idle."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is lost if the state is recreated."""


State = TypeVar("State", bound=Idle)


class StateTable(Generic[State]):
    """States by name.

    Args:
        idle_max: approximate number of idle states to keep.
    """

    def __init__(self, make: Callable[[str], State], idle_max: int = IDLE_STATES_MAX) -> None:
        self._make = make
        self._idle_max = idle_max
        self._all: WeakValueDictionary[str, State] = WeakValueDictionary()
        self._kept: dict[str, State] = {}
        self._next_sweep = idle_max

    def __getitem__(self, name: str) -> State:
        """Return the state for a name, created if it does not exist."""
        state = self._kept.get(name)
        if state is None:
            state = self._all.get(name) or self._make(name)
            self._all[name] = self._kept[name] = state
            if len(self._kept) > self._next_sweep:
                self._forget_idle()
        return state

    def find(self, name: str) -> State | None:
        """Return the state for a name, or None if it does not exist."""
        return self._all.get(name)

    def __iter__(self) -> Iterator[State]:
        """Iterate over all existing states."""
        return iter(list(self._all.values()))

    def __len__(self) -> int:
        """Return the number of existing states."""
        return len(self._all)

    def _forget_idle(self) -> None:
        """Drop the older half of the idle states; states that are in use delay the next sweep."""
        idle = [name for name, state in self._kept.items() if state.is_idle]
        for name in idle[: max(len(idle) - self._idle_max // 2, 0)]:
            del self._kept[name]
        self._next_sweep = len(self._kept) + self._idle_max // 2


class CriticalSection:
    """A critical section in effect on a namespace or a database.

    Attributes:
        reason: its purpose; two sections with the same reason are the same.
        began: monotonic time of its beginning.
        blocks_reads: whether it is in its second phase.
        held_writes: number of writes that have waited for it.
    """

    __slots__ = ("_released", "began", "blocks_reads", "held_writes", "reason")

    def __init__(self, reason: Mapping[str, Any]) -> None:
        self.reason = reason
        self.began = time.monotonic()
        self.blocks_reads = False
        self.held_writes = 0
        self._released = trio.Event()

    def blocks(self, *, is_write: bool) -> bool:
        """Whether an operation has to wait for this section."""
        return is_write or self.blocks_reads

    async def wait_released(self) -> None:
        """Return when the section is over."""
        await self._released.wait()

    def release(self) -> None:
        """End the section, and wake the operations that wait for it; they check again."""
        self._released.set()


class BlockableState:
    """The part of a state that critical sections change (`shardd.metadata.critical_sections`).

    Attributes:
        title: the namespace or database in errors.
        critical_section: the section in effect, if there is one.
    """

    __slots__ = ("critical_section", "title")

    def __init__(self, title: str) -> None:
        self.title = title
        self.critical_section: CriticalSection | None = None

    async def enter_section(self, reason: Mapping[str, Any]) -> CriticalSection:
        """Enter a critical section once no other is in effect, or return the one with the same reason.

        New writes wait from then on; running ones continue.
        """
        section = self.critical_section
        while section is not None and section.reason != reason:
            await section.wait_released()
            section = self.critical_section
        if section is None:
            await trio.lowlevel.checkpoint_if_cancelled()  # a step-down ends sections and cancels what waits for them
            section = self.critical_section = CriticalSection(reason)
        return section

    async def wait_section_over(self) -> None:
        """Return when no critical section is in effect."""
        while self.critical_section is not None:
            await self.critical_section.wait_released()

    def release(self) -> None:
        """End the critical section, if one is in effect."""
        section, self.critical_section = self.critical_section, None
        if section is not None:
            section.release()


_ACCEPTED_MAX: Final = 256


class NamespaceState(BlockableState):
    """The state of one namespace on this shard.

    Attributes:
        is_known: whether ``table`` is valid.
        table: the routing table; None for an unsharded collection.
        mutable_key: the part of a sharded collection's shard key that updates could change.
        last_table: the last valid table, from which a refresh continues.
        accepted: raw ``shardVersion`` values that have matched; most operations need only a comparison of bytes.
        generation: incremented whenever the metadata is dropped, so that a refresh that began earlier is detected.
        operations: the generation that counts new operations, since the last wait for running ones.
        orphans: hides documents that other shards own from operations; None if there cannot be any.
        last_arrival: monotonic time of the last arrival of a range from another shard.
        last_deletion: monotonic time of the last end of a range deletion.
        writers: number of running writes and of `transactions`. A critical section waits for them.
        is_resharding: whether this shard is a donor of a resharding operation, so that indexes must not change.
        transactions: number of open multi-document transactions with statements on the namespace.
    """

    __slots__ = (
        "__weakref__",
        "_drained",
        "_earlier_operations",
        "_range_deletions",
        "_unowned",
        "_unowned_by",
        "accepted",
        "generation",
        "is_known",
        "is_resharding",
        "last_arrival",
        "last_deletion",
        "last_table",
        "mutable_key",
        "namespace",
        "operations",
        "orphans",
        "shard",
        "table",
        "transactions",
        "writers",
    )

    def __init__(self, namespace: str, shard: str) -> None:
        super().__init__(namespace)
        self.namespace = namespace
        self.shard = shard
        self.is_known = self.is_resharding = False
        self.table: RoutingTable | None = None
        self.last_table: RoutingTable | None = None
        self.mutable_key: ShardKeyPattern | None = None
        self.accepted: set[bytes] = set()
        self.generation = 0
        self.orphans: OwnershipFilter | None = None
        self._range_deletions: Sequence[RangeDeletionTask] = ()
        self._unowned: OwnershipFilter | None = None
        self._unowned_by: RoutingTable | None = None
        self.operations = OperationGeneration()
        self._earlier_operations: list[OperationGeneration] = []
        self.writers = self.transactions = 0
        self.last_arrival = self.last_deletion = -inf
        self._drained: trio.Event | None = None  # if it is awaited

    # Metadata

    def learn(self, table: RoutingTable | None) -> None:
        """Set the metadata: a routing table, or None for an unsharded collection."""
        self.table = self.last_table = table
        self.mutable_key = None if table is None else mutable_part(table.key_pattern)
        self.is_known = True
        EPOCH.bump()
        self.accepted = self._always_accepted()
        self._find_orphans()

    @property
    def unowned(self) -> OwnershipFilter | None:
        """The filter for everything that this shard does not own; None if it would have too many ranges.

        It is computed on first use, once for each routing table.
        """
        if self.table is not self._unowned_by:
            self._unowned = None if self.table is None else unowned_filter(self.table, self.shard)
            self._unowned_by = self.table
        return self._unowned

    def set_range_deletions(self, tasks: "Sequence[RangeDeletionTask]") -> None:
        """Set the range deletions of the namespace."""
        if len(tasks) < len(self._range_deletions):
            self.last_deletion = time.monotonic()
        self._range_deletions = tasks
        self._find_orphans()

    def note_arrival(self) -> None:
        """Record that a range has arrived from another shard."""
        self.last_arrival = time.monotonic()

    def forget(self) -> None:
        """Drop the metadata, which may be stale."""
        self.generation += 1
        EPOCH.bump()
        self.is_known = False
        self.table = None
        self.accepted = set()

    @property
    def wanted(self) -> ChunkVersion | None:
        """The version that requests must have; None while the metadata is unknown."""
        if not self.is_known:
            return None
        return UNSHARDED if self.table is None else self.table.shard_version(self.shard)

    def check_version(self, raw: bytes, received: ChunkVersion) -> None:
        """Compare a version with the shard's, and cache the bytes of one that matches; else raise StaleConfig."""
        wanted = self.wanted
        if wanted is None:
            raise self._stale(
                received,
                f"sharding status of collection {self.namespace} is not currently known and needs to be recovered",
            )
        if received.timestamp != IGNORED.timestamp and not received.is_write_compatible_with(wanted):
            raise self._stale(received, _mismatch(self.namespace, received, wanted))
        if len(self.accepted) >= _ACCEPTED_MAX:
            self.accepted = self._always_accepted()
        self.accepted.add(raw)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is lost if the state is recreated: at most the fact that the namespace is not sharded."""
        is_quiet = not self.writers and self.operations.is_over and not self._earlier_operations
        is_at_rest = self.critical_section is None and not self.is_resharding and not self._range_deletions
        return is_quiet and is_at_rest and self.table is None

    # Running operations

    def enter(self, *, is_write: bool) -> None:
        """Count the start of an operation; the caller has checked that no critical section blocks it."""
        self.operations.enter(is_write=is_write)
        if is_write:
            self.writers += 1

    def exit(self, operations: OperationGeneration, *, is_write: bool) -> None:
        """Count the end of an operation.

        Args:
            operations: the value of the attribute ``operations`` when the operation started.
            is_write: the value given at its start.
        """
        operations.exit(is_write=is_write)
        if is_write:
            self._exit_writer()

    def enter_transaction(self) -> None:
        """Count an open transaction, during the admission of its first statement on the namespace."""
        self.transactions += 1
        self.writers += 1

    def exit_transaction(self) -> None:
        """Count the end of a transaction."""
        self.transactions -= 1
        self._exit_writer()

    def _exit_writer(self) -> None:
        self.writers -= 1
        if not self.writers and self._drained is not None:
            self._drained.set()
            self._drained = None

    async def wait_earlier_operations(self) -> None:
        """Return when all operations running now have ended, regardless of later ones."""
        for earlier in self._begin_generation():
            await earlier.wait_over()
        self._earlier_operations = [each for each in self._earlier_operations if not each.is_over]

    async def wait_present_writes(self) -> None:
        """Return when all writes running now have ended, regardless of later ones."""
        for earlier in self._begin_generation():
            await earlier.wait_writes_over()

    async def wait_earlier_writes(self) -> None:
        """Return when no writes are left among the operations that `wait_earlier_operations` last waited for."""
        for earlier in tuple(self._earlier_operations):
            await earlier.wait_writes_over()

    def supersede_earlier_reads(self, *hidden: OwnershipFilter) -> None:
        """Repeat the reads in progress among the operations that `wait_earlier_operations` last waited for.

        Args:
            hidden: the ranges that they must not see.
        """
        for earlier in self._earlier_operations:
            earlier.is_superseded = True
            earlier.hidden += hidden

    def _begin_generation(self) -> Sequence[OperationGeneration]:
        """Count new operations separately from running ones; return the generations of the running ones."""
        if not self.operations.is_over:
            self._earlier_operations.append(self.operations)
            self.operations = OperationGeneration()
        return tuple(self._earlier_operations)

    async def wait_writers_gone(self) -> None:
        """Return when no write is running; a critical section, of the namespace or its database, blocks new ones."""
        while self.writers:
            if self._drained is None:
                self._drained = trio.Event()
            await self._drained.wait()

    def _find_orphans(self) -> None:
        table = self.table
        ranges = orphan_ranges(self._range_deletions, table, self.shard) if table and self._range_deletions else ()
        self.orphans = None
        if table is not None and ranges:
            self.orphans = OwnershipFilter(table.key_pattern, ranges, table.collection.default_collation)

    def _always_accepted(self) -> set[bytes]:
        wanted = self.wanted
        assert wanted is not None
        return {wanted.raw, IGNORED.raw}

    def stale(self, received: ChunkVersion, message: str) -> StaleError:
        """Return StaleConfig for an operation with this version, to be retried once the shard has refreshed."""
        return stale_config(self.namespace, received, None, self.shard, message, may_shard_be_stale=True)

    def _stale(self, received: ChunkVersion, message: str) -> StaleError:
        wanted = self.wanted
        may_shard_be_stale = wanted is None or not received.is_older_or_equal(wanted)
        return stale_config(
            self.namespace, received, wanted, self.shard, message, may_shard_be_stale=may_shard_be_stale
        )


def _mismatch(namespace: str, received: ChunkVersion, wanted: ChunkVersion) -> str:
    if not received.is_same_collection(wanted):
        return f"timestamp mismatch detected for {namespace}"
    if received.is_set and not wanted.is_set:
        return f"this shard no longer contains chunks for {namespace}, the collection may have been dropped"
    if wanted.is_set and not received.is_set:
        return f"this shard contains chunks for {namespace}, but the client expects unsharded collection"
    return f"version mismatch detected for {namespace}"


class AdmittedPlacement(NamedTuple):
    """The metadata of a collection at an operation's admission.

    Attributes:
        table: the routing table; None for an unsharded collection.
        orphans: the filter that hides orphans; None if there are none.
    """

    table: RoutingTable | None
    mutable_key: ShardKeyPattern | None
    orphans: OwnershipFilter | None

    @classmethod
    def of(cls, state: NamespaceState) -> Self:
        """Return the placement of an operation at its admission."""
        return cls(state.table, state.mutable_key, state.orphans)
