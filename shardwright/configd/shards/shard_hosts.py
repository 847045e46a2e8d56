"""Updates of ``host`` in ``config.shards`` when the members of a shard's replica set change.

Routers and shards first look for a shard at the hosts in its entry. So the entry is updated with the set, as on
MongoDB's config server.
"""

import trio

from shardwright.configd.catalog.catalog import Catalog
from shardwright.configd.catalog.transactions import Transaction
from shardwright.configd.shards.shard_clients import ShardClients
from shardwright.daemon.backoff import Backoff, until_done
from shardwright.sharding.catalog.shard_entry import ShardEntry
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.transport.monitor import ReplicaSetMonitor

logger = get_logger("configd.shard_hosts")


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
