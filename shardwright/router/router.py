"""What all operations of a router process share, and how one of them talks to one shard."""

from collections.abc import Mapping
from time import time
from typing import TYPE_CHECKING, Any, Final

import bson
import trio
from bson.objectid import ObjectId

from shardwright.daemon.metrics import Metrics
from shardwright.router.cursors.manager import CursorManager
from shardwright.router.options import RouterOptions
from shardwright.router.parameters import Parameters
from shardwright.router.routing.catalog_client import CatalogClient
from shardwright.router.routing.routing_cache import RoutingCache
from shardwright.router.routing.shards import ShardRegistry
from shardwright.router.sending.shard_reply import ShardReply
from shardwright.sharding.clock import CONFIG_TIME, VectorClock, signed_cluster_time
from shardwright.sharding.timestamps import unpack_timestamp
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.hello import TopologyVersion
from shardwright.wire.message import op_msg
from shardwright.wire.read_preference import PRIMARY, ReadPreference
from shardwright.wire.transport.client import handshake_document
from shardwright.wire.transport.monitor import ReplicaSetMonitor
from shardwright.wire.transport.pools import ConnectionPools
from shardwright.wire.transport.replica_set import ReplicaSetClient
from shardwright.wire.transport.request_loop import may_run_in_reactor

if TYPE_CHECKING:
    from shardwright.wire.transport.server import Server

_ATTEMPTS_MAX: Final = 3
"""How often one request is sent to a shard in all, when it may be (MongoDB's ``kMaxNumRetries``)."""


class Router:
    """The shared state of a router process.

    Attributes:
        options: how it was started.
        shards: the shards and their members.
        routing: where data is.
        catalog: the config servers.
        cursors: cursors that clients have open here.
        parameters: what ``getParameter`` and ``setParameter`` know.
        metrics: what Prometheus reads.
        clock: the newest times seen in the cluster.
        server: what serves the clients, once it does.
        topology_version: changes when the router begins to shut down; `wait_for_topology_change` waits for that.
    """

    def __init__(self, options: RouterOptions, metrics: Metrics, nursery: trio.Nursery) -> None:
        self.options = options
        self.metrics = metrics
        self.started = time()
        self.clock = VectorClock()
        self.parameters = Parameters()
        self.pools = ConnectionPools(_handshake, options.pool)
        monitor = ReplicaSetMonitor(options.config_set, options.config_hosts, _handshake, self.pools)
        self.catalog = CatalogClient(ReplicaSetClient(monitor, self.pools), self.clock, options.config_seconds)
        self.shards = ShardRegistry(self.catalog, self.pools, _handshake, nursery, self.clock)
        self.routing = RoutingCache(self.catalog, nursery)
        self.cursors = CursorManager(
            self.pools,
            worker_index=options.worker_index,
            idle_milliseconds_max=lambda: float(self.parameters["cursorTimeoutMillis"]),
        )
        self.topology_version = TopologyVersion(ObjectId(), 0)
        self.server: Server | None = None
        self.is_shutting_down = False
        self._quiesce_ends = 0.0
        self._topology_changed = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep connections, monitors, cursors and sessions in order until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.pools.run)
            nursery.start_soon(self.catalog.client.monitor.run)
            nursery.start_soon(self.shards.run)
            nursery.start_soon(self.cursors.run)
            task_status.started()

    def begin_shutdown(self) -> None:
        """Tell clients that wait on hello that this router goes away (quiesce)."""
        self.is_shutting_down = True
        self._quiesce_ends = trio.current_time() + self.shutdown_seconds
        self.topology_version = self.topology_version.bumped()
        self._topology_changed.set()

    @property
    def shutdown_seconds(self) -> float:
        """How long running operations may go on once the shutdown has begun."""
        if self.options.shutdown_seconds is not None:
            return self.options.shutdown_seconds
        return float(self.parameters["mongosShutdownTimeoutMillisForSignaledShutdown"]) / 1000

    @property
    def remaining_quiesce_ms(self) -> int:
        """How much of that time is left."""
        return max(0, int((self._quiesce_ends - trio.current_time()) * 1000))

    async def wait_for_topology_change(self) -> None:
        """Return when `topology_version` has changed."""
        await self._topology_changed.wait()

    def gossip(self) -> dict[str, Any]:
        """The fields that replies made by the router itself end with."""
        cluster_time = self.clock.time.cluster_time
        if not cluster_time:
            return {}
        newest = unpack_timestamp(cluster_time)
        return {"$clusterTime": signed_cluster_time(newest), "operationTime": newest}

    def _config_gossip(self) -> dict[str, Any]:
        """The field by which shards learn up to where this router knows the catalog."""
        config_time = self.clock.time.config_time
        return {CONFIG_TIME.decode(): unpack_timestamp(config_time)} if config_time else {}

    @may_run_in_reactor
    async def send(
        self,
        shard_id: str,
        frame: bytes,
        *,
        preference: ReadPreference = PRIMARY,
        may_repeat: bool = False,
    ) -> ShardReply:
        """Send a request to a member of a shard and read its reply.

        A request that cannot have been executed, or that `may_repeat`, is sent again after an error that tells of a
        host that went away or is not primary any more, up to three times in all.

        Args:
            shard_id: the shard.
            frame: the request.
            preference: which member may answer.
            may_repeat: executing the request twice does what executing it once does (reads, retryable writes).

        Raises:
            CommandError: ShardNotFound; FailedToSatisfyReadPreference; HostUnreachable, the shard could not be talked
                to.
        """
        shard = self.shards.get_known(shard_id) or await self.shards.get(shard_id)
        client = shard.client
        for attempts_left in range(_ATTEMPTS_MAX - 1, -1, -1):
            address = client.monitor.select(preference) or await client.select(preference)
            try:
                reply = ShardReply(shard_id, address, await self.pools[address].exchange(frame))
            except BackendError as error:
                client.on_failure(address, error)
                if attempts_left and (may_repeat or not error.sent):
                    continue
                raise CommandError(
                    ErrorCode.HostUnreachable, f"Error contacting shard {shard_id} :: caused by :: {error}"
                ) from error
            reply.tell(self.clock)
            if reply.error is not None and has_category(reply.error.code, Category.NOT_PRIMARY):
                client.on_failure(address, reply.error)
                if attempts_left and may_repeat:
                    continue
            return reply
        raise AssertionError("unreachable")

    async def command_on_shard(
        self, shard_id: str, db: str, command: Mapping[str, Any], *, may_repeat: bool = False
    ) -> dict[str, Any]:
        """Run a command given as a dict on a shard's primary; returns the decoded reply.

        Raises:
            CommandError: it failed, or the shard could not be talked to.
        """
        elements = {**command, **self._config_gossip(), "$db": db}
        frame = op_msg(bson.encode(elements), request_id=next_request_id())
        reply = await self.send(shard_id, frame, may_repeat=may_repeat)
        reply.raise_for_error()
        return reply.document


def _handshake() -> dict[str, Any]:
    return handshake_document("shardwright-router")
