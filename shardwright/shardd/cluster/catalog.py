"""The config servers as this shard uses them: reading the catalog and requesting changes to it."""

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
"""Time limit for a read, including the wait of a config server for the config time that the shard knows."""


class Catalog(CatalogClient):
    """Reads and changes the catalog through the primary config server.

    Args:
        client: the client of the config servers.
        nursery: for reads that several tasks wait for.
        times: the config time that this shard knows.

    Attributes:
        knows_shards: whether the list of shards was read in this term. A donor has read it before a migration to a new
            shard, but the donor's primary may have been another member.
        topology_time: when a shard was last added or removed, as far as this daemon knows; packed, see
            `pack_timestamp`, and 0 if unknown.
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
            CommandError: as for `command`; or `ConfigTimes.wait_durable` failed, and the change may have been made.
            BackendError: likewise.
        """
        reply = await self.command({**command, "writeConcern": MAJORITY}, db)
        await self._times.wait_durable()
        return reply

    async def new_timestamp(
        self, cluster_time: Mapping[str, Any] | None = None, *, write_concern: Mapping[str, Any] = MAJORITY
    ) -> Timestamp:
        """A time that the config servers have not used before, such as the timestamp of a new collection's versions.

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
        """All shards by id, freshly read."""
        await self._shard_loads.run_after_now(None, self._load_shards)
        return self._shards

    async def shard_entry(self, shard_id: str, *, may_be_cached: bool = False) -> ShardEntry | None:
        """A shard's entry; None if there is no such shard.

        Args:
            shard_id: the shard.
            may_be_cached: whether the entry may be one that was read earlier in this term.
        """
        if may_be_cached and self.knows_shards and shard_id in self._shards:
            return self._shards[shard_id]
        return (await self.shards()).get(shard_id)

    async def _load_shards(self) -> None:
        self._shards = {entry.id: entry for entry in await self.read(read_shards())}
        self.topology_time = topology_time(self._shards.values())
        self.clock.advance(VectorTime(topology_time=self.topology_time))
        self.knows_shards = True
