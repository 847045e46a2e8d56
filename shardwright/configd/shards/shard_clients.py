"""Commands from the config server to shards."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import trio

from shardwright.sharding.catalog.shard_entry import ShardEntry
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.host_and_port import ConnectionString
from shardwright.wire.transport.client import handshake_document
from shardwright.wire.transport.monitor import ReplicaSetMonitor
from shardwright.wire.transport.pools import ConnectionPools
from shardwright.wire.transport.replica_set import ReplicaSetClient

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
