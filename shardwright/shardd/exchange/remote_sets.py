"""This shard among the replica sets of the cluster: its identity, clients of the others, and their transient errors.

The identity is the ``shardIdentity`` document of ``admin.system.version``. The other replica sets are the config
servers and the other shards. Both sides of a migration retry requests by `repeated`.

`Catalog` reads and changes the catalog on the config servers, at the newest config time that this shard has seen
(`ConfigTimes`). A shard that gave a range away must never mistake an older catalog for the current one, no matter which
member is primary. So the config time is persisted in ``config.vectorClock`` with majority write concern after the
catalog has changed, before anything relies on the change. A new primary reads it before it admits operations.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from time import time
from typing import Any, Final, TypeVar

import trio
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from shardwright.config_servers.catalog_client import CatalogClient
from shardwright.daemon.backoff import Backoff
from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.daemon.sidecar.noop_writer import append_oplog_note
from shardwright.daemon.single_flight import SingleFlight
from shardwright.shardd.local_mongod.local_collections import MAJORITY
from shardwright.sharding.catalog.documents import ShardEntry, topology_time
from shardwright.sharding.catalog.reads import advance_config_time, read_shards
from shardwright.sharding.clock import VectorClock, VectorTime
from shardwright.sharding.pipelines.pipeline import INVOLVED_NAMESPACES, received_versions
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import BackendError, CommandError, RemoteProtocolError
from shardwright.wire.host_and_port import ConnectionString
from shardwright.wire.rawbson import Span
from shardwright.wire.request import Request
from shardwright.wire.transport.monitor import ReplicaSetMonitor
from shardwright.wire.transport.pool import ConnectionPools
from shardwright.wire.transport.replica_set import ReplicaSetClient

Result = TypeVar("Result")

_ATTEMPTS_MAX: Final = 8
"""Attempts before an error is final: 5 to 12 seconds of pauses, plus the time to find a primary."""

IDENTITY_ID = "shardIdentity"

_DB: Final = "config"
_COLLECTION: Final = "vectorClock"
_STATE_ID: Final = "vectorClockState"
_MAJORITY: Final = {"w": "majority", "wtimeout": 60_000}

AHEAD_SECONDS_MAX: Final = 60
"""Seconds that a time in a request may be ahead of the wall clock and of the servers' cluster times.

Any client can send a time; later ones are ignored. Cluster times count because they stay ahead when a clock is set
back.
"""

READ_SECONDS_MAX: Final = 60.0
"""Time limit for a read, including the config server's wait for this shard's config time."""


def is_transient(error: CommandError) -> bool:
    """Whether a server was unreachable or not ready, so that a retry may succeed."""
    return has_category(error.code, Category.RETRYABLE) or error.code == ErrorCode.FailedToSatisfyReadPreference


def as_command_error(error: Exception) -> CommandError:
    """Convert an error to the CommandError that answers a request; InternalError for a foreign exception."""
    if isinstance(error, CommandError):
        return error
    if isinstance(error, BackendError | RemoteProtocolError):
        return CommandError(ErrorCode.HostUnreachable, str(error))
    return CommandError(ErrorCode.InternalError, f"{type(error).__name__}: {error}")


async def repeated(ask: Callable[[], Awaitable[Result]], on_failure: Callable[[CommandError], None]) -> Result:
    """Run an idempotent request; retry transient errors for a limited time.

    Args:
        ask: sends the request.
        on_failure: called with the error before each pause.

    Raises:
        CommandError: from ``ask``, if the error is not transient or it was the last attempt.
    """
    backoff = Backoff(first_seconds=0.1, seconds_max=5.0)
    for _ in range(_ATTEMPTS_MAX - 1):
        try:
            return await ask()
        except CommandError as error:
            if not is_transient(error):
                raise
            on_failure(error)
        await backoff.pause()
    return await ask()


@dataclass(frozen=True, slots=True)
class ShardIdentity:
    """The identity that makes a replica set a shard.

    Attributes:
        config_string: the config servers, ``set/host:port,…``.
    """

    shard_name: str
    cluster_id: ObjectId
    config_string: str

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "ShardIdentity":
        """Read the document, with or without its ``_id``.

        Raises NoSuchKey, FailedToParse or UnsupportedFormat if a field is missing or malformed.
        """
        try:
            identity = cls(document["shardName"], document["clusterId"], document["configsvrConnectionString"])
        except KeyError as error:
            raise CommandError(ErrorCode.NoSuchKey, f"missing {error} in a shard identity") from error
        identity.config_servers  # noqa: B018 - parses, and so checks
        return identity

    @property
    def config_servers(self) -> ConnectionString:
        """The config servers.

        Raises FailedToParse, or UnsupportedFormat if they are not a replica set.
        """
        parsed = ConnectionString.parse(self.config_string)
        if not parsed.set_name:
            raise CommandError(
                ErrorCode.UnsupportedFormat, f"config server connection string can only be replica sets: {parsed}"
            )
        return parsed

    def to_document(self) -> dict[str, Any]:
        """Return the document as MongoDB writes it."""
        return {
            "_id": IDENTITY_ID,
            "shardName": self.shard_name,
            "clusterId": self.cluster_id,
            "configsvrConnectionString": self.config_string,
        }

    def is_same_shard(self, other: "ShardIdentity") -> bool:
        """Whether both are the same shard of the same cluster, even if the config servers' hosts differ."""
        return (self.shard_name, self.cluster_id, self.config_servers.set_name) == (
            other.shard_name,
            other.cluster_id,
            other.config_servers.set_name,
        )


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

    def monitors(self) -> list[ReplicaSetMonitor]:
        """Return the monitors of all sets."""
        return [each.monitor for each in self._clients.values()]

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


class ConfigTimes:
    """A shard daemon's vector clock and its durable part."""

    def __init__(self, mongod: LocalMongod) -> None:
        self.clock = VectorClock()
        self._mongod = mongod
        self._durable = VectorTime()
        self._told_by_servers = 0

    def observe(self, request: Request) -> None:
        """Advance the clock to the times in a request, unless they are in the future.

        Each involved namespace carries its own config time, because the router may have read them at different times.
        Malformed times raise TypeMismatch or FailedToParse.
        """
        self._observe(request.body, request.fields)
        involved = request.fields.get(INVOLVED_NAMESPACES)
        if involved is not None:
            for fields in received_versions(request.body, involved).values():
                self._observe(request.body, fields)

    def _observe(self, body: bytes, fields: Mapping[bytes, Span]) -> None:
        limit = (max(int(time()), self._told_by_servers >> 32) + AHEAD_SECONDS_MAX) << 32
        seen = VectorTime.from_message(body, fields)
        self.clock.advance(VectorTime(*(each if each < limit else 0 for each in seen.components)))

    def observe_reply(self, reply: Mapping[str, Any]) -> None:
        """Advance the clock to the times in the reply of another server, or of this shard's mongod."""
        told = VectorTime.from_gossip(reply)
        self._told_by_servers = max(self._told_by_servers, told.cluster_time)
        self.clock.advance(told)

    def gossip(self) -> dict[str, Any]:
        """Return the time fields for requests and replies between servers; empty while no time is known."""
        return self.clock.gossip()

    async def recover(self) -> None:
        """Advance the clock to the time that the former primary persisted."""
        self._durable = VectorTime()
        find = {"find": _COLLECTION, "filter": {"_id": _STATE_ID}, "$readPreference": {"mode": "nearest"}}
        reply = await self._mongod.command(_DB, find)
        self.observe_reply(reply)
        for document in reply["cursor"]["firstBatch"]:
            self._durable = VectorTime.from_document(document)
            advance_config_time(self.clock, self._durable.config_time)
            self.clock.advance(self._durable)

    async def wait_durable(self) -> None:
        """Return when a majority of the set has the current config time, or raise an error after a timeout."""
        known = self.clock.time
        if known.config_time <= self._durable.config_time:
            return
        state = known.to_document()
        newest = {"q": {"_id": state.pop("_id")}, "u": {"$max": state}, "upsert": True}
        await self._mongod.write(_DB, {"update": _COLLECTION, "updates": [newest], "writeConcern": _MAJORITY})
        self._durable = self._durable.joined(known)


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
