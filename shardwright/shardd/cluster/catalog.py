"""The config servers as this shard uses them: reading the catalog and requesting changes to it."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import trio
from bson.timestamp import Timestamp

from shardwright.daemon.single_flight import SingleFlight
from shardwright.shardd.cluster.config_times import ConfigTimes
from shardwright.shardd.local_mongod.write_concern import MAJORITY
from shardwright.sharding.catalog.config_time import observe_command, observe_read, read_after
from shardwright.sharding.catalog.reads import CatalogRead, CatalogReads, Result, read_shards
from shardwright.sharding.catalog.shard_entry import ShardEntry, topology_time
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.transport.replica_set import ReplicaSetClient

READ_MILLISECONDS_MAX: Final = 60_000
"""Time limit for a read on a config server, including its wait for the config time that the shard knows."""


class Catalog:
    """Reads and changes the catalog through the primary config server.

    No read is older than the known config time, and reads and changes advance it.

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
        self.client = client
        self._times = times
        self.knows_shards = False
        self.topology_time = 0
        self._shards: dict[str, ShardEntry] = {}
        self._shard_loads: SingleFlight[None, None] = SingleFlight(nursery)

    async def read(self, reads: CatalogReads[Result]) -> Result:
        """Run one of the reads of `sharding.catalog.reads`.

        Raises:
            CommandError: HostUnreachable, or the config server's error; or raised by the read itself.
        """
        try:
            wanted = next(reads)
            while True:
                wanted = reads.send(await self._find(wanted))
        except StopIteration as done:
            result: Result = done.value
            return result

    async def command(self, command: Mapping[str, Any], db: str = "admin") -> dict[str, Any]:
        """Run an idempotent command.

        Raises:
            CommandError: HostUnreachable, or the config server's error.
        """
        try:
            reply = await self.client.command(db, command)
        except BackendError as error:
            raise _unreachable(error) from error
        observe_command(self._times.clock, reply)
        return reply

    async def commit(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run one of the ``_configsvr`` commands that change the catalog, with majority write concern.

        Once this has returned, no primary of this shard reads an older catalog.

        Raises:
            CommandError: as for `command`; or `ConfigTimes.wait_durable` failed, and the change may have been made.
            BackendError: likewise.
        """
        reply = await self.command({**command, "writeConcern": MAJORITY})
        await self._times.wait_durable()
        return reply

    async def find(
        self, collection: str, query: Mapping[str, Any], *, sort: Mapping[str, int] | None = None
    ) -> list[bytes]:
        """The raw documents that a query on a collection of the config database returns.

        Raises:
            CommandError: as for `command`.
        """
        find: dict[str, Any] = {"find": collection, "filter": query, "readConcern": {"level": "majority"}}
        if sort is not None:
            find["sort"] = sort
        return await self._find(CatalogRead("config", find))

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
        reply = await self.command(note)
        now: Timestamp = reply["operationTime"]
        return now

    async def shards(self) -> dict[str, ShardEntry]:
        """All shards by id, freshly read."""
        await self._shard_loads.run_after_now(None, self._load_shards)
        return self._shards

    async def _load_shards(self) -> None:
        self._shards = {entry.id: entry for entry in await self.read(read_shards())}
        self.topology_time = topology_time(self._shards.values())
        self.knows_shards = True

    async def _find(self, wanted: CatalogRead) -> list[bytes]:
        bounded = read_after(wanted, self._times.clock.time.config_time, READ_MILLISECONDS_MAX)
        try:
            return await self.client.find_raw(*bounded, on_reply=partial(observe_read, self._times.clock))
        except CommandError as error:
            if error.code != ErrorCode.MaxTimeMSExpired:
                raise
            raise CommandError(
                ErrorCode.NetworkInterfaceExceededTimeLimit, "the config servers did not answer in time"
            ) from error
        except BackendError as error:
            raise _unreachable(error) from error


def _unreachable(error: BackendError) -> CommandError:
    return CommandError(ErrorCode.HostUnreachable, f"could not reach the config servers: {error}")
