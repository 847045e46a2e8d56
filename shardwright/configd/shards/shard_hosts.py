"""Keeping ``host`` in ``config.shards`` current when the members of a shard's replica set change.

Routers and shards first look for a shard at the hosts in its entry. So the entry is updated with the set, as on
MongoDB's config server.
"""

from dataclasses import replace

import trio

from shardwright.configd.catalog.catalog import Catalog
from shardwright.configd.catalog.transactions import Transaction
from shardwright.configd.shards.shard_clients import ShardClients
from shardwright.sharding.catalog.shard_entry import ShardEntry
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("configd.shard_hosts")


class ShardHosts:
    """Monitors the members of all shards while this daemon is primary.

    Args:
        catalog: contains the entries.
        shards: monitors the sets.
        nursery: the term's nursery.
    """

    def __init__(self, catalog: Catalog, shards: ShardClients, nursery: trio.Nursery) -> None:
        self._catalog = catalog
        self._shards = shards
        self._nursery = nursery
        self._followed: set[str] = set()

    async def follow_all(self) -> None:
        """Monitor the existing shards. Shards added later are passed to `follow`."""
        try:
            for shard in await self._catalog.shards():
                self.follow(shard)
        except (CommandError, BackendError) as error:
            logger.warning("Could not read the list of shards to monitor their hosts", error=str(error))

    def follow(self, shard: ShardEntry) -> None:
        """Monitor one shard, unless it is monitored already."""
        if shard.id not in self._followed:
            self._followed.add(shard.id)
            self._nursery.start_soon(self._follow, shard)

    async def _follow(self, shard: ShardEntry) -> None:
        monitor = self._shards.client(shard).monitor
        while True:
            # Only a primary's list of members is authoritative.
            current = shard if monitor.primary is None else replace(shard, host=monitor.connection_string)
            if set(current.members) != set(shard.members):
                shard = current
                await self._update(shard.id, shard.host)
            else:
                await monitor.wait_for_change()

    async def _update(self, shard_id: str, host: str) -> None:
        async def work(transaction: Transaction) -> None:
            document = await transaction.find_one("shards", {"_id": shard_id})
            if document is not None:
                transaction.put("shards", [{**document, "host": host}])

        try:
            await self._catalog.transaction(work)
        except (CommandError, BackendError) as error:
            logger.warning("Could not update the hosts of a shard", shard=shard_id, host=host, error=str(error))
        else:
            logger.info("Updated the hosts of a shard", shard=shard_id, host=host)
