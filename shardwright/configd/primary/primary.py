"""The resources of one term as primary."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from shardwright.configd.catalog.catalog import Catalog
from shardwright.configd.catalog.changelog import ChangeLog
from shardwright.configd.primary.balancer_rounds import BalancerRounds
from shardwright.configd.primary.busy_shards import BusyShards
from shardwright.configd.primary.coordinator_places import hang_at
from shardwright.configd.primary.held_back import HeldBack
from shardwright.configd.primary.locks import NamedLocks
from shardwright.configd.primary.running_reshardings import RunningReshardings
from shardwright.configd.shards.shard_clients import ShardClients
from shardwright.configd.shards.shard_hosts import ShardHosts
from shardwright.daemon.fail_points import FailPoints
from shardwright.daemon.shown_locks import ShownLocks
from shardwright.daemon.sidecar.term_scope import working_for
from shardwright.daemon.single_flight import SingleFlight
from shardwright.wire.connection_string import ConnectionString
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

T = TypeVar("T")


class Primary:
    """One term as primary.

    Attributes:
        term: the election's number.
        catalog: the config database.
        changelog: records changes.
        shards: sends commands to shards.
        shard_hosts: keeps the hosts in their entries current.
        migrations: unanswered requests to donors, by their bytes; an identical request waits for the same answer.
        reshardings: the resharding operation under way, if there is one.
        user_write_blocks: the coordinator that sets the user write block mode, if one runs, by its session.
        balancer_rounds: how the balancer's rounds are going.
        busy_shards: the shards that take part in a move of the balancer.
        held_back: chunks whose moves by the balancer have failed.
        shown_locks: shows in the catalog what is under way.
        locks: locks on databases, collections and so on, distinguished by prefixes: ``db:``, ``ns:``, ``shards``.
        config_servers: returns their connection string, as sent to shards.
    """

    def __init__(
        self,
        *,
        term: int,
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
        self.term = term
        self.catalog = catalog
        self.changelog = changelog
        self.shards = shards
        self.shard_hosts = shard_hosts
        self.migrations = migrations
        self.reshardings = reshardings
        self.user_write_blocks = user_write_blocks
        self.balancer_rounds = BalancerRounds()
        self.busy_shards = BusyShards()
        self.held_back = HeldBack()
        self.shown_locks = shown_locks
        self.locks = NamedLocks()
        self.config_servers = config_servers
        self._fail_points = fail_points
        self._operations: set[trio.CancelScope] = set()
        self._is_over = False

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of ``work``, which is interrupted when the term ends.

        Its commands to the mongod run in this term only, even if the daemon is paused and the mongod is elected again.

        Raises:
            CommandError: InterruptedDueToReplStateChange, or what ``work`` raises.
        """
        scope = trio.CancelScope()
        self._operations.add(scope)
        try:
            with scope, working_for(self.term):
                if self._is_over:
                    scope.cancel()
                return await work()
        finally:
            self._operations.discard(scope)
        raise CommandError(ErrorCode.InterruptedDueToReplStateChange, "operation was interrupted")

    async def hang_at(self, coordinator_type: str, place: str) -> None:
        """Wait while a fail point says so for coordinators of this type at this place."""
        await hang_at(self._fail_points, coordinator_type, place)

    def end(self) -> None:
        """End the term: interrupt the running operations."""
        self._is_over = True
        for scope in self._operations:
            scope.cancel()
