"""Clients of the other replica sets: the config servers and the other shards."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import trio

from shardwright.sharding.catalog.shard_entry import ShardEntry
from shardwright.wire.host_and_port import ConnectionString
from shardwright.wire.transport.monitor import ReplicaSetMonitor
from shardwright.wire.transport.pools import ConnectionPools
from shardwright.wire.transport.replica_set import ReplicaSetClient

if TYPE_CHECKING:
    from bson.timestamp import Timestamp


class RemoteSets:
    """One client per replica set name, seeded with the hosts of the first connection string.

    Args:
        handshake: returns the hello that opens connections.
        nursery: runs the monitors of the sets.
    """

    def __init__(
        self, pools: ConnectionPools, handshake: Callable[[], Mapping[str, Any]], nursery: trio.Nursery
    ) -> None:
        self._pools = pools
        self._handshake = handshake
        self._nursery = nursery
        self._clients: dict[str, ReplicaSetClient] = {}
        self._added: dict[str, Timestamp | None] = {}

    def __getitem__(self, hosts: ConnectionString) -> ReplicaSetClient:
        """Return the client for a replica set."""
        name = hosts.set_name
        client = self._clients.get(name)
        if client is None or not client.monitor.may_be_at(hosts.addresses):
            if client is not None:
                client.monitor.stop()
            monitor = ReplicaSetMonitor(name, hosts.addresses, self._handshake, self._pools)
            self._nursery.start_soon(monitor.run)
            client = self._clients[name] = ReplicaSetClient(monitor, self._pools)
        return client

    def of_shard(self, shard: ShardEntry) -> ReplicaSetClient:
        """Return the client for a shard's replica set.

        A shard that was removed and added again may be a new set with the same name, even at the same hosts. Its
        election ids would count as older than the known ones, so it gets a new client.

        Raises:
            CommandError: FailedToParse, its entry names no hosts.
        """
        hosts = shard.connection_string
        if self._added.setdefault(hosts.set_name, shard.topology_time) != shard.topology_time:
            self._added[hosts.set_name] = shard.topology_time
            former = self._clients.pop(hosts.set_name, None)
            if former is not None:
                former.monitor.stop()
        return self[hosts]
