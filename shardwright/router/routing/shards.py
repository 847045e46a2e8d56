"""The shards of the cluster: their names, hosts and primaries."""

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Final

import trio
from bson.timestamp import Timestamp

from shardwright.config_servers.catalog_client import CatalogClient
from shardwright.daemon.backoff import Backoff
from shardwright.daemon.single_flight import SingleFlight
from shardwright.router.placement.routing_info import UnknownShardError
from shardwright.sharding.catalog.documents import ShardEntry, topology_time
from shardwright.sharding.catalog.reads import read_shards
from shardwright.sharding.clock import VectorClock, VectorTime
from shardwright.sharding.versions import CONFIG_SHARD
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.host_and_port import ConnectionString
from shardwright.wire.logger import get_logger
from shardwright.wire.read_preference import ReadPreference
from shardwright.wire.transport.monitor import ReplicaSetMonitor
from shardwright.wire.transport.pool import ConnectionPools
from shardwright.wire.transport.reactor import may_run_in_reactor
from shardwright.wire.transport.replica_set import ReplicaSetClient

logger = get_logger("router.shards")

RELOAD_SECONDS: Final = 30.0
"""The period of reloads, as of mongos's ``ShardRegistry``. A list that turns out to be stale is reloaded at once."""


class Shard:
    """A shard with a client for its replica set.

    Attributes:
        topology_time: see `ShardEntry`.
    """

    __slots__ = ("client", "id", "topology_time")

    def __init__(self, shard_id: str, client: ReplicaSetClient, topology_time: Timestamp | None = None) -> None:
        self.id = shard_id
        self.client = client
        self.topology_time = topology_time

    @property
    def connection_string(self) -> str:
        """The connection string ``set/host:port,…`` of the members known now."""
        return self.client.monitor.connection_string

    def stop(self) -> None:
        """Stop following the members."""
        self.client.monitor.stop()


class ShardRegistry:
    """All shards by name. `run` must be running while it is used. Reads raise CommandError if they fail.

    Attributes:
        topology_time: when a shard was last added or removed, according to the loaded list; packed, see
            `pack_timestamp`.
        is_known: whether the list has been loaded.
        on_removed: called with the names of shards that are not, or no longer, in the catalog.
    """

    def __init__(
        self,
        catalog: CatalogClient,
        pools: ConnectionPools,
        handshake: Callable[[], Mapping[str, Any]],
        nursery: trio.Nursery,
        clock: VectorClock,
    ) -> None:
        self._catalog = catalog
        self._pools = pools
        self._handshake = handshake
        self._nursery = nursery
        self._clock = clock
        self._loads: SingleFlight[str, None] = SingleFlight(nursery)
        self._config = Shard(CONFIG_SHARD, catalog.client)
        self._shards: dict[str, Shard] = {}
        self._removed: dict[str, Shard] = {}
        self._wanted_as_of = 0
        self.topology_time = 0
        self.is_known = False
        self.on_removed: Callable[[Set[str]], None] = lambda _: None

    async def run(self) -> None:
        """Load the list at once and periodically, until cancelled.

        After a failed reload the next periodic one follows. Before the first success nothing can be routed, so retries
        are more frequent.
        """
        backoff = Backoff(first_seconds=0.5, seconds_max=2.0)
        while True:
            await self._catalog.attempt(self.reload)
            await trio.sleep(RELOAD_SECONDS if self.is_known else backoff.next_seconds())

    @may_run_in_reactor
    async def reload(self) -> None:
        """Load the current list of shards; concurrent callers share one read."""
        await self._loads.run_after_now("shards", self._load)

    async def reload_as_of(self, time: int) -> tuple[str, ...]:
        """Return the sorted names of all shards but the config servers, at a packed cluster time or later."""
        self._wanted_as_of = max(self._wanted_as_of, time)
        await self.reload()
        return tuple(sorted(self._shards))

    @may_run_in_reactor
    async def get(self, shard_id: str) -> Shard:
        """Return the shard with a name; the list is reloaded if it lacks the name.

        Raises:
            UnknownShardError: the catalog has no such shard.
        """
        shard = self.get_known(shard_id)
        if shard is None:
            await self.reload()
            shard = self.get_known(shard_id)
        if shard is None:
            self.on_removed({shard_id})
            raise UnknownShardError(shard_id)
        return shard

    async def get_current(self, shard_id: str) -> Shard:
        """Return the shard with a name, from a reloaded list if shards were added or removed since the last reload.

        Raises:
            UnknownShardError: the catalog has no such shard.
        """
        if self._clock.time.topology_time > self.topology_time:
            await self._catalog.attempt_briefly(self.reload)
        return await self.get(shard_id)

    @may_run_in_reactor
    async def understands(self, shard_id: str, extension: str, preference: ReadPreference) -> bool:
        """Whether the selected member of a shard announces in its hello that it understands an extension of MongoDB.

        Raises:
            CommandError: ShardNotFound; FailedToSatisfyReadPreference if no member was suitable in time.
        """
        shard = await self.get(shard_id)
        address = await shard.client.select(preference)
        return _announces(shard, address, extension)

    def is_understood(self, shard_id: str, extension: str, preference: ReadPreference) -> bool:
        """Whether a suitable member is known now that `understands` the extension."""
        shard = self.get_known(shard_id)
        address = None if shard is None else shard.client.monitor.select(preference)
        return shard is not None and address is not None and _announces(shard, address, extension)

    def is_understood_by_all(self, shard_id: str, extension: str) -> bool:
        """Whether all members of a shard that may serve now announce an extension.

        The sender selects the member later, and another one if it has to repeat the request.
        """
        shard = self.get_known(shard_id)
        readable = () if shard is None else shard.client.monitor.readable()
        return shard is not None and bool(readable) and all(_announces(shard, each, extension) for each in readable)

    def get_known(self, shard_id: str) -> Shard | None:
        """Return the shard with a name from the loaded list."""
        return self._config if shard_id == CONFIG_SHARD else self._shards.get(shard_id)

    async def get_with_removed(self, shard_id: str) -> Shard:
        """Return the shard with a name, even a removed one: cursors on its members stay open.

        Raises:
            UnknownShardError: the catalog has no such shard.
        """
        return self.find_with_removed(shard_id) or await self.get(shard_id)

    def find_with_removed(self, shard_id: str) -> Shard | None:
        """Return the shard with a name that is, or was, in the loaded list."""
        return self._removed.get(shard_id) or self.get_known(shard_id)

    def find(self, identifier: str) -> Shard | None:
        """Find a known shard by its name, its connection string ``set/host:port,…`` or a member ``host:port``."""
        if identifier in self._shards:
            return self._shards[identifier]
        try:
            wanted = ConnectionString.parse(identifier)
        except CommandError:
            return None
        for shard in self._shards.values():
            monitor = shard.client.monitor
            if wanted.set_name in ("", monitor.set_name) and monitor.members.keys() >= set(wanted.addresses):
                return shard
        return None

    async def all_ids(self) -> tuple[str, ...]:
        """Return the sorted names of all shards in the catalog but the config servers.

        If the config servers do not answer in time, the known shards are returned, unless a shard has reported a later
        change.
        """
        await self._catalog.attempt_briefly(self.reload)
        return await self.ids_as_told()

    async def any_id(self) -> str:
        """Return the name of a shard for a request that any shard can serve, from a list that is reloaded if possible.

        Raises:
            CommandError: ShardNotFound if there are no shards.
        """
        return self.reachable_of(await self.all_ids())

    @may_run_in_reactor
    async def any_id_as_told(self) -> str:
        """Return such a name from the list of `ids_as_told`; raises as `any_id`."""
        return self.reachable_of(await self.ids_as_told())

    def reachable_of(self, shard_ids: Sequence[str]) -> str:
        """Return the first of some shards whose primary is known, or the first of all if none is.

        Raises:
            CommandError: ShardNotFound if there are no shards.
        """
        if not shard_ids:
            raise CommandError(ErrorCode.ShardNotFound, "No shards found")
        known = ((shard_id, self._shards.get(shard_id)) for shard_id in shard_ids)
        having = (shard_id for shard_id, shard in known if shard is not None and shard.client.monitor.primary)
        return next(having, shard_ids[0])

    @may_run_in_reactor
    async def ids_as_told(self) -> tuple[str, ...]:
        """Return the sorted names of all shards but the config servers, as of the last change that shards reported.

        The list is reloaded only if a shard has reported a change since it was loaded, or if it is empty.
        """
        if not self._shards or self._clock.time.topology_time > self.topology_time:
            await self.reload()
        return tuple(sorted(self._shards))

    def known(self) -> tuple[Shard, ...]:
        """Return all known shards, including the config servers."""
        return (self._config, *self._shards.values())

    async def _load(self) -> None:
        as_of, self._wanted_as_of = self._wanted_as_of, 0
        entries = {entry.id: entry for entry in await self._catalog.read(read_shards(), as_of=as_of)}
        removed = self._shards.keys() - entries.keys()
        for shard_id in removed:
            shard = self._removed[shard_id] = self._shards.pop(shard_id)
            shard.stop()
        if removed:
            self.on_removed(removed)
        for entry in entries.values():
            self._try_follow(entry)
        self.topology_time = topology_time(entries.values())
        self._clock.advance(VectorTime(topology_time=self.topology_time))
        self.is_known = True

    def _try_follow(self, entry: ShardEntry) -> None:
        """Follow a shard. An entry without hosts must not make the other shards unusable; mongos skips it too."""
        try:
            hosts = entry.connection_string
        except CommandError as error:
            logger.warning("Could not read the hosts of a shard", shard=entry.id, host=entry.host, error=str(error))
            return
        known = self._shards.get(entry.id)
        if known is not None:
            # A shard that was removed and added again may be another set of the same name, even at the same hosts. Its
            # elections would count as older than the known ones.
            is_same = known.topology_time == entry.topology_time
            if is_same and known.client.monitor.may_be_at(hosts.addresses):
                return
            known.stop()
        self._removed.pop(entry.id, None)
        self._shards[entry.id] = self._start(entry, hosts)

    def _start(self, entry: ShardEntry, hosts: ConnectionString) -> Shard:
        monitor = ReplicaSetMonitor(hosts.set_name, hosts.addresses, self._handshake, self._pools)
        self._nursery.start_soon(monitor.run)
        return Shard(entry.id, ReplicaSetClient(monitor, self._pools), entry.topology_time)


def _announces(shard: Shard, address: str, extension: str) -> bool:
    member = shard.client.monitor.members.get(address)
    return member is not None and extension in member.extensions
