"""Client of the config servers: reads the catalog and requests changes to it."""

from collections.abc import Mapping
from typing import Any, Final

import trio
from bson.timestamp import Timestamp

from shardwright.config_servers.catalog_client import CatalogClient
from shardwright.daemon.oplog_note import append_oplog_note
from shardwright.daemon.single_flight import SingleFlight
from shardwright.shardd.cluster.config_times import ConfigTimes
from shardwright.shardd.local_mongod.config_collection import MAJORITY
from shardwright.sharding.catalog.reads import read_shards
from shardwright.sharding.catalog.shard_entry import ShardEntry, topology_time
from shardwright.sharding.clock import VectorTime
from shardwright.wire.transport.replica_set import ReplicaSetClient

READ_SECONDS_MAX: Final = 60.0
"""Time limit for a read, including the config server's wait for this shard's config time."""


class Catalog(CatalogClient):
    """Reads and changes the catalog through the primary config server.

    Args:
        nursery: runs reads that several tasks wait for.

    Attributes:
        knows_shards: whether the shards were read in this term. A donor reads them before a migration to a new shard,
            but the donor's primary may have been another member then.
        topology_time: packed time of the last known addition or removal of a shard, see `pack_timestamp`; 0 if unknown.
    """

    def __init__(self, client: ReplicaSetClient, nursery: trio.Nursery, times: ConfigTimes) -> None:
        super().__init__(client, times.clock, READ_SECONDS_MAX)
        self._times = times
        self.knows_shards = False
        self.topology_time = 0
        self._shards: dict[str, ShardEntry] = {}
        self._shard_loads: SingleFlight[None, None] = SingleFlight(nursery)

    async def commit(self, command: Mapping[str, Any], db: str = "admin") -> dict[str, Any]:
        """Run one of the ``_configsvr`` commands that change the catalog, with majority write concern.

        Once this has returned, no primary of this shard reads an older catalog.

        Raises:
            CommandError: as for `command`; or `ConfigTimes.wait_durable` failed and the change may have been made.
            BackendError: for the same reasons.
        """
        reply = await self.command({**command, "writeConcern": MAJORITY}, db)
        await self._times.wait_durable()
        return reply

    async def new_timestamp(
        self, cluster_time: Mapping[str, Any] | None = None, *, write_concern: Mapping[str, Any] = MAJORITY
    ) -> Timestamp:
        """Return a time that the config servers have not used before, such as the timestamp of a new collection.

        Args:
            cluster_time: a ``$clusterTime`` that the time has to come after.
            write_concern: less than a majority suffices if a change with that time is refused after a rollback.

        Raises:
            CommandError: as for `command`.
        """
        note = {"appendOplogNote": 1, "data": {"msg": "new collection timestamp"}, "writeConcern": write_concern}
        if cluster_time is not None:
            note["$clusterTime"] = cluster_time

        async def run(_: str, command: Mapping[str, Any]) -> dict[str, Any]:
            return await self.command(command)

        reply = await append_oplog_note(run, note)
        now: Timestamp = reply["operationTime"]
        return now

    async def shards(self) -> dict[str, ShardEntry]:
        """Read all shards, by id."""
        await self._shard_loads.run_after_now(None, self._load_shards)
        return self._shards

    async def shard_entry(self, shard_id: str, *, may_be_cached: bool = False) -> ShardEntry | None:
        """Return a shard's entry, or None if there is no such shard.

        Args:
            may_be_cached: whether an entry read earlier in this term will do.
        """
        if may_be_cached and self.knows_shards and shard_id in self._shards:
            return self._shards[shard_id]
        return (await self.shards()).get(shard_id)

    async def _load_shards(self) -> None:
        self._shards = {entry.id: entry for entry in await self.read(read_shards())}
        self.topology_time = topology_time(self._shards.values())
        self.clock.advance(VectorTime(topology_time=self.topology_time))
        self.knows_shards = True
