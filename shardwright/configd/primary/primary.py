"""What the daemon can do while its mongod is primary, and only then."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from shardwright.configd.catalog.catalog import Catalog
from shardwright.configd.catalog.changelog import ChangeLog
from shardwright.configd.primary.locks import NamedLocks
from shardwright.configd.shards.shard_clients import ShardClients
from shardwright.configd.shards.shard_hosts import ShardHosts
from shardwright.daemon.single_flight import SingleFlight
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

T = TypeVar("T")


class Primary:
    """One term as primary.

    Attributes:
        term: the election's number.
        catalog: the config database.
        changelog: where changes are noted.
        shards: commands to shards.
        shard_hosts: keeps their entries current.
        migrations: orders to donors that were not answered yet, by their bytes; a request for just the same one waits.
        locks: by database, collection and so on; prefixed so that they do not meet: ``db:``, ``ns:``, ``shards``.
        config_string: gives ``set/host:port,…`` of the config servers, in the form that shards get.
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
        config_string: Callable[[], str],
    ) -> None:
        self.term = term
        self.catalog = catalog
        self.changelog = changelog
        self.shards = shards
        self.shard_hosts = shard_hosts
        self.migrations = migrations
        self.locks = NamedLocks()
        self.config_string = config_string
        self._operations: set[trio.CancelScope] = set()
        self._is_over = False

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of ``work``, which is interrupted when the term ends.

        Raises:
            CommandError: InterruptedDueToReplStateChange, or what ``work`` raises.
        """
        scope = trio.CancelScope()
        self._operations.add(scope)
        try:
            with scope:
                if self._is_over:
                    scope.cancel()
                return await work()
        finally:
            self._operations.discard(scope)
        raise CommandError(ErrorCode.InterruptedDueToReplStateChange, "operation was interrupted")

    def end(self) -> None:
        """The term is over: interrupt the operations under way."""
        self._is_over = True
        for scope in self._operations:
            scope.cancel()
