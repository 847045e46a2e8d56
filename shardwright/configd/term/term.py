"""One term as primary: locks, running operations, and the state of the balancer's rounds and failed moves.

Named locks make conflicting operations wait for each other. They are kept in memory: only the primary writes, and
transactions protect the catalog even from a primary that has not noticed its step-down yet.

Each shard takes part in at most one move of the balancer at a time (`BusyShards`). A chunk whose move has failed is
retried after a pause that grows with every failure (`MoveBackoff`). For tests, fail points make the config servers'
coordinators wait at given places. Commands wait for resharding operations in progress, or end them, by
`RunningReshardings`.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

import trio

from shardwright.configd.catalog.catalog import Catalog
from shardwright.configd.catalog.transactions import ChangeLog
from shardwright.configd.term.shard_clients import ShardClients, ShardHosts
from shardwright.daemon.fail_points import FailPoints
from shardwright.daemon.shown_locks import ShownLocks
from shardwright.daemon.sidecar.term_fence import Reign, working_for
from shardwright.daemon.single_flight import SingleFlight
from shardwright.sharding.resharding_operation import ReshardingStatistics
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.host_and_port import ConnectionString

ABORTED = "aborted"
"""MongoDB's message for an operation that a user has ended."""


class ReshardingControl:
    """The users' control of one operation.

    Attributes:
        commit_requested: set when a user does not want to wait until the recipients have caught up.
        is_decided: the decision to commit is being written, or has been.
        began: the start of the operation in this term, on trio's clock.
        shown: returns its entry in ``currentOp``; None before it runs.
    """

    def __init__(self) -> None:
        self._scope = trio.CancelScope()
        self._is_aborted = False
        self._is_uninterrupted = False
        self.commit_requested = trio.Event()
        self.is_decided = False
        self.began = trio.current_time()
        self.shown: Callable[[], dict[str, Any]] | None = None

    def before_decision(self) -> trio.CancelScope:
        """Return a scope for the steps before the decision; `abort` cancels it."""
        self._scope = trio.CancelScope()
        self._cancel_if_aborted()
        return self._scope

    @contextmanager
    def uninterrupted(self) -> Iterator[None]:
        """Delay an abort until the end of the block; the end of the term still cancels it."""
        self._is_uninterrupted = True
        try:
            yield
        finally:
            self._is_uninterrupted = False
            self._cancel_if_aborted()

    def abort(self) -> None:
        """Abort the operation, unless it is too late."""
        if not self.is_decided:
            self._is_aborted = True
            self._cancel_if_aborted()

    def _cancel_if_aborted(self) -> None:
        if self._is_aborted and not self._is_uninterrupted:
            self._scope.cancel()


class RunningReshardings:
    """The operations of one term, with the counts of all terms; there is at most one in a cluster."""

    def __init__(self, nursery: trio.Nursery, statistics: ReshardingStatistics) -> None:
        self.statistics = statistics
        self._flights: SingleFlight[UUID, None] = SingleFlight(
            nursery, cancelled=ErrorCode.InterruptedDueToReplStateChange
        )
        self._controls: dict[UUID, ReshardingControl] = {}

    async def run(self, operation_id: UUID, work: Callable[[ReshardingControl], Awaitable[None]]) -> None:
        """Run an operation, or wait for the end of its present run; raises the error with which it ended."""

        async def controlled() -> None:
            try:
                await work(self.control(operation_id))
            finally:
                del self._controls[operation_id]

        await self._flights.run(operation_id, controlled)

    def operations(self) -> list[dict[str, Any]]:
        """Return the operations for ``currentOp``."""
        return [control.shown() for control in self._controls.values() if control.shown is not None]

    def control(self, operation_id: UUID) -> ReshardingControl:
        """Return the control of an operation, even before it has begun in this term.

        If the operation has ended already, the control is kept until the end of the term, without effect.
        """
        return self._controls.setdefault(operation_id, ReshardingControl())


class BalancerRounds:
    """The rounds of one term.

    Attributes:
        is_active: a round is running, or is checking whether it may run.
        mode: the mode in the last valid settings that the balancer has read.
    """

    def __init__(self) -> None:
        self.number = 0
        self.is_active = False
        self.is_deciding = False
        self.mode = "full"
        self._moving = 0
        self._steps = 0
        self._over = trio.Event()
        self._wanted = trio.Event()
        self._changed = trio.Event()

    @property
    def is_balancing(self) -> bool:
        """Whether a round that may balance is running, or moves of such a round."""
        return self.is_deciding or self._moving > 0

    def begin(self) -> None:
        """Begin a round, which covers all changes made before."""
        self.number += 1
        self.is_active = True
        self._wanted = trio.Event()

    def end(self) -> None:
        """End the round."""
        self.is_active = self.is_deciding = False
        self._over.set()
        self._over = trio.Event()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Run a step alongside the rounds. Stopping the balancer waits for its end."""
        self._steps += 1
        try:
            yield
        finally:
            self._steps -= 1
            self._over.set()
            self._over = trio.Event()

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Run the moves of a round, which may outlast the next round's wait for them."""
        self._moving += 1
        try:
            with self.step():
                yield
        finally:
            self._moving -= 1

    def want_next(self) -> None:
        """Request the next round at once, after a change that the balancer has to process."""
        self._wanted.set()
        self._changed.set()
        self._changed = trio.Event()

    async def wait_changed(self, seconds_max: float) -> None:
        """Return after some time, or after a change that the balancer has to process."""
        with trio.move_on_after(seconds_max):
            await self._changed.wait()

    async def wait_wanted(self, seconds_max: float) -> None:
        """Return when the next round is due: after some time, or when it is requested."""
        with trio.move_on_after(seconds_max):
            await self._wanted.wait()

    async def wait_over(self) -> None:
        """Return after the present round, if any, and all steps and moves."""
        number = self.number
        while (self.is_active and self.number == number) or self._steps:
            await self._over.wait()


class BusyShards:
    """The shards in moves of one term."""

    def __init__(self) -> None:
        self._busy: set[str] = set()
        self._freed = trio.Event()

    def __contains__(self, shard: str) -> bool:
        return shard in self._busy

    @contextmanager
    def taking(self, *shards: str) -> Iterator[bool]:
        """Take shards for the block if all of them are free; yields whether they were."""
        if not self._busy.isdisjoint(shards):
            yield False
            return
        self._busy.update(shards)
        try:
            yield True
        finally:
            self._busy.difference_update(shards)
            self._freed.set()
            self._freed = trio.Event()

    async def wait_free(self, *shards: str) -> None:
        """Return when all of the shards are free. Another task may take them after the next checkpoint."""
        while not self._busy.isdisjoint(shards):
            await self._freed.wait()


HANG_IN_CONFIG_COORDINATOR: Final = "hangInConfigCoordinator"
"""Fail point for coordinators of the ``coordinatorType`` in its data, at the place ``at``.

The place is a state or phase, after that has been persisted, or ``end``, before the document is removed. Without either
field it applies to all types or places.
"""

END: Final = "end"
"""The place of a coordinator after its last state, for the fail point."""

FAIL_POINT_NAMES: Final = frozenset({HANG_IN_CONFIG_COORDINATOR})


async def hang_at(fail_points: FailPoints, coordinator_type: str, place: str) -> None:
    """Wait while the fail point applies to coordinators of this type at this place."""

    def concerns_this(data: Mapping[str, Any]) -> bool:
        here = {"coordinatorType": coordinator_type, "at": place}
        return all(data.get(name, value) == value for name, value in here.items())

    await fail_points.hang_while(HANG_IN_CONFIG_COORDINATOR, concerns_this)


FIRST_PAUSE_SECONDS: Final = 20.0
PAUSE_SECONDS_MAX: Final = 3600.0
CHUNKS_MAX: Final = 1000
"""Maximum number of failed chunks recorded for each collection; the oldest failure is dropped first."""


class _Failure(NamedTuple):
    pause_seconds: float
    until: float
    error: str


class MoveBackoff:
    """The chunks of all collections whose last move has failed in this term.

    Collections are identified by UUID, because failures do not apply to a later collection of the same name.
    """

    def __init__(self, clock: Callable[[], float] = trio.current_time) -> None:
        self._clock = clock
        self._failures: dict[UUID, dict[bytes, _Failure]] = {}

    def failed(self, collection: UUID, lower_bound: bytes, error: str) -> None:
        """Record a failed move of a chunk or of its beginning."""
        failures = self._failures.setdefault(collection, {})
        earlier = failures.pop(lower_bound, None)
        pause = FIRST_PAUSE_SECONDS if earlier is None else min(2 * earlier.pause_seconds, PAUSE_SECONDS_MAX)
        failures[lower_bound] = _Failure(pause, self._clock() + pause, error)
        if len(failures) > CHUNKS_MAX:
            del failures[next(iter(failures))]

    def moved(self, collection: UUID, lower_bound: bytes) -> None:
        """Record a successful move of a chunk."""
        failures = self._failures.get(collection, {})
        failures.pop(lower_bound, None)
        if not failures:
            self._failures.pop(collection, None)

    def lower_bounds(self, collection: UUID) -> list[bytes]:
        """Return the lower bounds of a collection's chunks that must not be moved now."""
        now = self._clock()
        return [bound for bound, failure in self._failures.get(collection, {}).items() if failure.until > now]

    def errors(self, collection: UUID) -> dict[bytes, str]:
        """Return the last error of each chunk of a collection that must not be moved now."""
        failures = self._failures.get(collection, {})
        return {bound: failures[bound].error for bound in self.lower_bounds(collection)}


# The list of shards has several locks, because some holders wait for shards, and others for a critical section.

ADDING_SHARDS: Final = "adding shards"
"""Held while a shard is added, and by the phases of a write block, which shards may delay for long."""

CLUSTER_SETTINGS: Final = "cluster settings"
"""Held by changes on all shards that a new shard has to get too."""

REMOVING_SHARDS: Final = "removing shards"
"""Held by the removal of a shard, and by changes that give a shard something that forbids its removal."""


class NamedLocks:
    """One lock for each name in use, granted in order of request."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    @asynccontextmanager
    async def hold(self, *names: str) -> AsyncIterator[None]:
        """Hold the locks of all ``names``; they are always acquired in the same order."""
        async with AsyncExitStack() as stack:
            for name in sorted(set(names)):
                await stack.enter_async_context(self._hold_one(name))
            yield

    @asynccontextmanager
    async def _hold_one(self, name: str) -> AsyncIterator[None]:
        entry = self._entries.setdefault(name, _Entry())
        entry.users += 1
        try:
            async with entry.lock:
                yield
        finally:
            entry.users -= 1
            if not entry.users:
                del self._entries[name]

    @property
    def names_in_use(self) -> frozenset[str]:
        """The names whose locks are held or waited for."""
        return frozenset(self._entries)


class _Entry:
    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = trio.Lock()
        self.users = 0


T = TypeVar("T")


class Term:
    """One term as primary.

    Attributes:
        reign: the part of the term in which this daemon works as primary.
        shard_hosts: updates the hosts in the shards' entries.
        migrations: unanswered requests to donors, by their bytes; an identical request waits for the same answer.
        user_write_blocks: the coordinator that sets the user write block mode, if one runs, by its session.
        shown_locks: shows operations in progress as locks in the catalog.
        locks: named locks, such as ``db:NAME``, ``ns:NAMESPACE`` and `ADDING_SHARDS`.
        config_servers: returns their connection string, as sent to shards.
    """

    def __init__(
        self,
        *,
        reign: Reign,
        catalog: Catalog,
        changelog: ChangeLog,
        shards: ShardClients,
        shard_hosts: ShardHosts,
        migrations: SingleFlight[bytes, None],
        reshardings: RunningReshardings,
        user_write_blocks: SingleFlight[bytes, None],
        shown_locks: ShownLocks,
        config_servers: Callable[[], ConnectionString],
        fail_points: FailPoints,
    ) -> None:
        self.reign = reign
        self.catalog = catalog
        self.changelog = changelog
        self.shards = shards
        self.shard_hosts = shard_hosts
        self.migrations = migrations
        self.reshardings = reshardings
        self.user_write_blocks = user_write_blocks
        self.balancer_rounds = BalancerRounds()
        self.busy_shards = BusyShards()
        self.move_backoff = MoveBackoff()
        self.shown_locks = shown_locks
        self.locks = NamedLocks()
        self.config_servers = config_servers
        self._fail_points = fail_points
        self._operations: set[trio.CancelScope] = set()
        self._is_over = False

    @property
    def number(self) -> int:
        """The number of the election, which grows with each."""
        return self.reign.term

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run ``work``, which is interrupted when the term ends; returns its result.

        Its commands to the mongod run in this reign only, even if the daemon is paused and the mongod is elected again.

        Raises:
            CommandError: InterruptedDueToReplStateChange, or an error of ``work``.
        """
        scope = trio.CancelScope()
        self._operations.add(scope)
        try:
            with scope, working_for(self.reign):
                if self._is_over:
                    scope.cancel()
                return await work()
        finally:
            self._operations.discard(scope)
        raise CommandError(ErrorCode.InterruptedDueToReplStateChange, "operation was interrupted")

    async def hang_at(self, coordinator_type: str, place: str) -> None:
        """Wait while a fail point applies to coordinators of this type at this place."""
        await hang_at(self._fail_points, coordinator_type, place)

    def end(self) -> None:
        """End the term and interrupt the running operations."""
        self._is_over = True
        for scope in self._operations:
            scope.cancel()
