"""The state shared by all operations of a router process."""

from dataclasses import replace
from pathlib import Path
from time import time
from typing import Any

import trio

from shardwright.config_servers.catalog_client import CatalogClient
from shardwright.daemon.command_table import CommandTable
from shardwright.daemon.fail_points import FailPoints
from shardwright.daemon.metrics import Metrics
from shardwright.daemon.tracing import Tracing
from shardwright.router.access.access_control import AccessControl
from shardwright.router.access.user_cache import AnybodySeen
from shardwright.router.context.client_times import ClientTimes
from shardwright.router.context.default_concerns import DefaultConcerns
from shardwright.router.context.options import FAIL_POINT_NAMES, RouterOptions
from shardwright.router.context.parameters import Parameters
from shardwright.router.context.query_shapes import QueryShapes
from shardwright.router.context.served_clients import Quiesce, ServedClients
from shardwright.router.context.slow_operations import SlowOperations
from shardwright.router.context.statistics import SessionJobs, SharedCounts, TargetCounts
from shardwright.router.cursors.manager import CursorManager
from shardwright.router.routing.routing_cache import RoutingCache
from shardwright.router.routing.shards import ShardRegistry
from shardwright.router.routing.signing_key_cache import SigningKeyCache
from shardwright.router.sending.oplog_advancer import OplogAdvancer
from shardwright.router.sending.shard_counts import ShardCounts
from shardwright.router.sending.shard_sender import ShardSender
from shardwright.router.transactions.internal_transaction import WriteSessions
from shardwright.router.transactions.transaction_table import TransactionTable
from shardwright.router.writes.batch import WriteKind
from shardwright.sharding.catalog.settings import ChunkSizeSettings
from shardwright.sharding.clock import VectorClock
from shardwright.sharding.cluster_time import TimeSigner
from shardwright.sharding.logical_sessions import SessionCache
from shardwright.wire.hello import MAX_WIRE_VERSION, MIN_WIRE_VERSION
from shardwright.wire.read_preference import PRIMARY_PREFERRED
from shardwright.wire.transport.client import handshake_document
from shardwright.wire.transport.client_connection import Deadlines
from shardwright.wire.transport.monitor import ReplicaSetMonitor
from shardwright.wire.transport.pool import ConnectionPools
from shardwright.wire.transport.replica_set import ReplicaSetClient
from shardwright.wire.transport.transport import Transport


class RouterContext:
    """The context of one router process. It is created first, and depends neither on commands nor on operations.

    Args:
        nursery: for tasks that live as long as the router.
        commands: the table of commands; test commands are left out unless a parameter enables them.

    Attributes:
        background: for tasks that outlive the operation that started them.
        started: the start time of the process, in seconds since 1970.
        commands: the commands that clients may run, for the dispatcher and for commands about commands.
        chunk_bytes_max: the largest range that the balancer moves at once, as last reported by the config servers.
        fail_points: points where tests can make the router wait or fail.
        shared_counts: counts that all processes of the router share.
        pools_as_router: connections to genuine shards with the handshake of a mongos.
        log_ins: authentication and users. Clients may log in even without access control, to no effect.
        access: authorization; None without access control.
        signer: signs the cluster times in replies to clients.
        signing_keys: supplies the signer's keys.
        oplogs: advances shards to cluster times.
        sessions: the logical sessions used here since the last refresh.
        session_jobs: the results of session refreshes.
        write_sessions: for writes that shards must recognize although their clients have not numbered them.
        statement_counts: the number of executed write statements, by kind.
        target_counts: counts of reads and writes by how many shards they targeted.
        query_shapes: counts of operations by shape.
        tracing: the tracer; None if tracing is off.
        shutdown_seconds_wanted: the grace period of a ``shutdown`` command for running operations.
    """

    def __init__(
        self,
        options: RouterOptions,
        transport: Transport,
        metrics: Metrics,
        nursery: trio.Nursery,
        commands: CommandTable[Any],
    ) -> None:
        self.options = options
        self.transport = transport
        self.metrics = metrics
        self.background = nursery
        self.started = time()
        self.clock = VectorClock()
        self.parameters = Parameters(transport.cluster_auth, options.parameters)
        has_test_commands = self.parameters["enableTestCommands"]
        self.commands = commands.where(lambda each: has_test_commands or not each.test_only)
        sockets = options.worker_sockets
        self.default_concerns = DefaultConcerns()
        self.chunk_bytes_max = ChunkSizeSettings().value_bytes
        self.slow_operations = SlowOperations(options.slow_ms)
        shared_directory = Path(sockets[0]).parent if sockets else None
        self.shared_counts = SharedCounts(shared_directory)
        self.fail_points = FailPoints(FAIL_POINT_NAMES, self.shared_counts.counter)
        self.pools_as_router = ConnectionPools(
            transport, _handshake_of_router, replace(options.pool, connections_min=0)
        )
        self.pools = ConnectionPools(transport, _handshake, options.pool, followers=[self.pools_as_router])
        config_servers = options.config_servers
        monitor = ReplicaSetMonitor(config_servers.set_name, config_servers.addresses, _handshake, self.pools)
        self.catalog = CatalogClient(
            ReplicaSetClient(monitor, self.pools), self.clock, options.config_seconds, PRIMARY_PREFERRED
        )
        self.log_ins = AccessControl(
            self.catalog,
            transport.cluster_auth,
            lambda: float(self.parameters["userCacheInvalidationIntervalSecs"]),
            AnybodySeen(shared_directory),
            nursery,
        )
        self.access = self.log_ins if transport.cluster_auth.is_on else None
        self.shards = ShardRegistry(self.catalog, self.pools, _handshake, nursery, self.clock)
        self.routing = RoutingCache(self.catalog, nursery)
        self.shards.on_removed = self.routing.forget_shards
        self.signer = TimeSigner(withholds_unsigned=self.access is not None)
        self.signing_keys = SigningKeyCache(self.catalog, self.signer, nursery)
        self.client_times = ClientTimes(
            self.clock,
            self.signer,
            self.signing_keys.refresh,
            self.parameters["maxAcceptableLogicalClockDriftSecs"],
        )
        self.shard_counts = ShardCounts()
        self.sender = ShardSender(
            self.shards, self.pools, self.clock, self.signer, self.pools_as_router, self.shard_counts
        )
        self.oplogs = OplogAdvancer(self.sender)
        self.cursors = CursorManager(
            transport.unread_replies.holdings,
            worker_index=options.worker_index,
            idle_milliseconds_max=lambda: float(self.parameters["cursorTimeoutMillis"]),
            sessions_time_out=lambda: bool(self.parameters["enableTimeoutOfInactiveSessionCursors"]),
        )
        self.transactions = TransactionTable(self.parameters["maxSessions"])
        self.sessions = SessionCache(self.parameters["maxSessions"])
        self.session_jobs = SessionJobs()
        self.write_sessions = WriteSessions()
        self.statement_counts = dict.fromkeys(WriteKind, 0)
        self.target_counts = TargetCounts()
        self.query_shapes = QueryShapes(self.parameters)
        self.clients = ServedClients()
        self.deadlines = Deadlines()
        self.quiesce = Quiesce()
        self.shutdown_seconds_wanted: float | None = None
        self.tracing = None
        if options.tracing is not None:
            self.tracing = Tracing("shardwright-router", options.tracing, metrics.operations)

    @property
    def shutdown_seconds(self) -> float:
        """The grace period for running operations after the shutdown has begun."""
        if self.shutdown_seconds_wanted is not None:
            return self.shutdown_seconds_wanted
        if self.options.shutdown_seconds is not None:
            return self.options.shutdown_seconds
        return float(self.parameters["mongosShutdownTimeoutMillisForSignaledShutdown"]) / 1000


def _handshake() -> dict[str, Any]:
    return handshake_document("shardwright-router")


def _handshake_of_router() -> dict[str, Any]:
    """Return the handshake of a mongos, a cluster member with the wire versions of MongoDB 6.0."""
    versions = {"minWireVersion": MIN_WIRE_VERSION, "maxWireVersion": MAX_WIRE_VERSION}
    return {**_handshake(), "internalClient": versions}
