"""Commands from the config server to shards, and updates of their hosts.

`ShardHosts` updates ``host`` in ``config.shards`` when the members of a shard's replica set change. Routers and shards
first look for a shard at the hosts in its entry. So the entry is updated with the set, as on MongoDB's config server.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import trio

from shardwright.configd.catalog.catalog import Catalog
from shardwright.configd.catalog.transactions import Transaction
from shardwright.daemon.backoff import Backoff, until_done
from shardwright.sharding.catalog.documents import ShardEntry
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.host_and_port import ConnectionString
from shardwright.wire.logger import get_logger
from shardwright.wire.transport.client import handshake_document
from shardwright.wire.transport.monitor import ReplicaSetMonitor
from shardwright.wire.transport.pool import ConnectionPools
from shardwright.wire.transport.replica_set import ReplicaSetClient

logger = get_logger("configd.shard_hosts")


APPLICATION: Final = "shardwright-configd"


def handshake() -> dict[str, Any]:
    """Build the hello of the config daemon's own connections."""
    return handshake_document(APPLICATION)


class ShardClients:
    """Clients of the shards, which monitor their replica sets while this daemon is primary.

    Args:
        nursery: the term's nursery.
        gossip: returns the times to send with commands.

    Attributes:
        transport: the transport of all connections of the daemon.
        check_term: raises InterruptedDueToReplStateChange if the task's term is over. A daemon that was paused may not
            have noticed the end yet.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        pools: ConnectionPools,
        gossip: Callable[[], Awaitable[Mapping[str, Any]]],
        check_term: Callable[[], Awaitable[None]],
    ) -> None:
        self.check_term = check_term
        self._gossip = gossip
        self._nursery = nursery
        self.transport = pools.transport
        self._pools = pools
        self._clients: dict[str, ReplicaSetClient] = {}

    def client(self, shard: ShardEntry) -> ReplicaSetClient:
        """Return the client of a shard, created on first use; raises FailedToParse if its entry names no hosts."""
        client = self._clients.get(shard.id)
        hosts = shard.connection_string
        if client is None or client.set_name != hosts.set_name or not client.monitor.may_be_at(hosts.addresses):
            self.forget(shard.id)
            client = self._clients[shard.id] = ReplicaSetClient(self._monitor(hosts), self._pools)
            self._nursery.start_soon(client.monitor.run)
        return client

    def monitors(self) -> list[ReplicaSetMonitor]:
        """Return the monitors of all shards with a client."""
        return [each.monitor for each in self._clients.values()]

    def forget(self, shard_id: str) -> None:
        """Stop monitoring a removed shard."""
        client = self._clients.pop(shard_id, None)
        if client is not None:
            client.monitor.stop()

    async def command(self, shard: ShardEntry, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run a repeatable command on the primary of a shard, unless the task's term is over.

        Raises:
            CommandError: the shard refused, or could not be reached (HostUnreachable, FailedToSatisfyReadPreference);
                FailedToParse, its entry names no hosts; InterruptedDueToReplStateChange, the term is over.
        """
        try:
            gossiped = await self._gossip()
            await self.check_term()
            return await self.client(shard).command(db, {**command, **gossiped})
        except BackendError as error:
            raise CommandError(ErrorCode.HostUnreachable, str(error)) from error

    @asynccontextmanager
    async def candidate(self, target: ConnectionString) -> AsyncIterator[ReplicaSetClient]:
        """Create a client of a replica set that is not a shard yet, monitored only in the context."""
        monitor = self._monitor(target)
        # Not in a separate nursery, which would wrap errors that leave the context.
        self._nursery.start_soon(monitor.run)
        try:
            yield ReplicaSetClient(monitor, self._pools)
        finally:
            monitor.stop()

    def _monitor(self, hosts: ConnectionString) -> ReplicaSetMonitor:
        return ReplicaSetMonitor(hosts.set_name, hosts.addresses, handshake, self._pools)


class ShardHosts:
    """Monitors of the members of all shards while this daemon is primary."""

    def __init__(self, catalog: Catalog, shards: ShardClients, nursery: trio.Nursery) -> None:
        self._catalog = catalog
        self._shards = shards
        self._nursery = nursery
        self._followed: dict[str, trio.CancelScope] = {}

    async def follow_all(self) -> None:
        """Monitor the existing shards. Shards added later are passed to `follow`."""

        def log_failure(error: CommandError | BackendError, seconds: float) -> None:
            logger.warning(
                "Could not read the list of shards to monitor their hosts", error=str(error), retry_seconds=seconds
            )

        for shard in await until_done(self._catalog.shards, _backoff(), log_failure):
            try:
                self.follow(shard)
            except CommandError as error:
                logger.warning("Could not read the hosts of a shard", shard=shard.id, host=shard.host, error=str(error))

    def follow(self, shard: ShardEntry) -> None:
        """Monitor one shard, unless it is monitored already; raises FailedToParse if its entry names no hosts."""
        if shard.id not in self._followed:
            monitor = self._shards.client(shard).monitor
            scope = self._followed[shard.id] = trio.CancelScope()
            self._nursery.start_soon(self._follow, scope, shard.id, set(shard.connection_string.addresses), monitor)

    def forget(self, shard_id: str) -> None:
        """Stop monitoring a removed shard."""
        scope = self._followed.pop(shard_id, None)
        if scope is not None:
            scope.cancel()

    async def _follow(
        self, scope: trio.CancelScope, shard_id: str, entered: set[str], monitor: ReplicaSetMonitor
    ) -> None:
        with scope:
            while True:
                # Only a primary's list of members is authoritative. It is empty if the set has been initiated with the
                # addresses of daemons, and an entry without hosts would make the shard unreachable for good.
                if monitor.primary is not None and monitor.members and monitor.members.keys() != entered:
                    entered = set(monitor.members)
                    await self._update(shard_id, monitor.connection_string)
                else:
                    await monitor.wait_for_change()

    async def _update(self, shard_id: str, host: str) -> None:
        async def work(transaction: Transaction) -> None:
            document = await transaction.find_one("shards", {"_id": shard_id})
            if document is not None:
                transaction.put("shards", [{**document, "host": host}])

        def log_failure(error: CommandError | BackendError, seconds: float) -> None:
            logger.warning(
                "Could not update the hosts of a shard",
                shard=shard_id,
                host=host,
                error=str(error),
                retry_seconds=seconds,
            )

        await until_done(lambda: self._catalog.transaction(work), _backoff(), log_failure)
        logger.info("Updated the hosts of a shard", shard=shard_id, host=host)


def _backoff() -> Backoff:
    return Backoff(first_seconds=0.5, seconds_max=10.0)
