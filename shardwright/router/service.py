"""The router as a daemon: the command line, the life cycle of its parts, and its metrics.

One process or several share the port (`router.processes`). In the background, a router reads settings of the cluster
from the config servers. It also keeps its entry in ``config.mongos`` current, which shows administrators the routers of
a cluster.

The metrics here are about shards, targeting, the routing cache, and open cursors, transactions and sessions. The
dispatcher, the passages and the slow log declare their own. docs/daemon.md lists all.
"""

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Final

import trio
from bson.int64 import Int64

from shardwright.config_servers.catalog_client import CatalogClient, follow_feature_version
from shardwright.daemon.audit_log import check_audit, opened_audit_log
from shardwright.daemon.certificates import rotate_certificates
from shardwright.daemon.configuration.configuration import Configuration, nested_options
from shardwright.daemon.configuration.process import Rereading, introduction, process_configuration
from shardwright.daemon.configuration.table import ROUTER
from shardwright.daemon.logs import DaemonLogs
from shardwright.daemon.metrics import Metrics, measure_connections
from shardwright.daemon.option_values import known_address
from shardwright.daemon.process_environment import check_fitness
from shardwright.daemon.run import Reread, run_daemon
from shardwright.daemon.tracing import TracingOptions, check_tracing
from shardwright.router.commands.router_commands import ROUTER_COMMANDS
from shardwright.router.context.options import MONGODB_VERSION, RouterOptions
from shardwright.router.context.parameters import parse_parameter
from shardwright.router.context.router_context import RouterContext
from shardwright.router.processes.workers import WORKER_OPTIONS, end_with_supervisor, run_workers, worker_sockets
from shardwright.router.replies.reply_builder import framed_error, signed
from shardwright.router.replies.shard_reply import answer_in
from shardwright.router.sending.shard_counts import durations, transferred
from shardwright.router.sessions.session_refresh import refresh_repeatedly
from shardwright.router.tracing import dispatcher_of
from shardwright.sharding.catalog.reads import read_chunk_size
from shardwright.sharding.feature_version import refusal, router_fields
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.transport.monitor import ReplicaSetMonitor
from shardwright.wire.transport.server import Server
from shardwright.wire.transport.transport import Transport

_SETTINGS_INTERVAL_SECONDS: Final = 30.0
"""As in mongos, which may use the previous default concerns for this long."""

_REGISTRATION_INTERVAL_SECONDS: Final = 10.0


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a router until it receives a signal to stop; returns the exit code."""
    found = process_configuration(
        ROUTER, arguments, check=check_options, parse_parameter=parse_parameter, hidden=WORKER_OPTIONS
    )
    audit = opened_audit_log(ROUTER.name, found.values)
    logs = DaemonLogs(None if audit is None else audit.file)
    if found.values.workers > 1 and found.values.worker_index is None:
        return run_workers(found, logs, check_options)
    options = replace(_options(found), audit=audit, logs=logs)
    is_worker = found.values.worker_index is not None
    return run_daemon(
        ROUTER.name,
        found.values,
        partial(RouterService.start, options),
        introduction=introduction(found),
        read_again=None if found.file is None else Rereading(found, check_options),
        is_main=not is_worker,
        reuse_port=found.values.workers > 1,
        unix_socket=options.worker_sockets[options.worker_index] if options.worker_sockets else None,
        # The process that started the workers rotates the logs that they share.
        on_log_signal=logs.reopen if is_worker else logs.rotate,
    )


def check_options(parsed: argparse.Namespace) -> None:
    """Refuse options that do not fit together, with ValueError."""
    check_audit(parsed)
    check_tracing(parsed)


def _options(found: Configuration) -> RouterOptions:
    values = found.values
    address = known_address(values)
    return RouterOptions(
        config_servers=values.configdb,
        address=address,
        arguments=(ROUTER.name, *found.words),
        given=nested_options(found),
        worker_index=values.worker_index or 0,
        worker_sockets=worker_sockets(values),
        supervisor=values.worker_supervisor,
        slow_ms=values.slow_ms,
        shutdown_seconds=values.shutdown_seconds,
        config_seconds=values.config_seconds,
        parameters=dict(values.parameters),
        tracing=TracingOptions.of(values, address),
    )


class RouterService:
    """The service that `daemon.run` runs for ``shardwright-router``."""

    def __init__(self, options: RouterOptions, transport: Transport, nursery: trio.Nursery) -> None:
        metrics = Metrics("router", ROUTER_COMMANDS.names)
        self._context = RouterContext(options, transport, metrics, nursery, ROUTER_COMMANDS)
        self._registration = MongosRegistration(self._context.catalog, options.address)
        self._nursery = nursery
        self._given_parameters = options.parameters
        dispatcher = dispatcher_of(self._context)
        self._passages = dispatcher.passages
        self.handle = dispatcher.handle
        self.connection_opened = dispatcher.connection_opened
        self.connection_closed = dispatcher.connection_closed
        self._slow_log = dispatcher.slow_log

    @classmethod
    async def start(cls, options: RouterOptions, transport: Transport, nursery: trio.Nursery) -> "RouterService":
        """Create the router and start its background tasks."""
        service = cls(options, transport, nursery)
        service._start()
        if options.worker_sockets:
            nursery.start_soon(end_with_supervisor)
        return service

    def _start(self) -> None:
        """Start the background tasks."""
        context = self._context
        self._nursery.start_soon(context.pools.run)
        self._nursery.start_soon(context.pools_as_router.run)
        self._nursery.start_soon(context.catalog.client.monitor.run)
        self._nursery.start_soon(context.shards.run)
        self._nursery.start_soon(context.signing_keys.run)
        self._nursery.start_soon(context.log_ins.users.run)
        self._nursery.start_soon(context.cursors.run)
        self._nursery.start_soon(refresh_repeatedly, context)
        self._nursery.start_soon(self._registration.run)
        self._nursery.start_soon(_refresh_cluster_settings, context)
        self._nursery.start_soon(follow_feature_version, context.catalog, _check_feature_version)
        self._nursery.start_soon(self._slow_log.run)
        self._nursery.start_soon(context.deadlines.run)
        if context.tracing is not None:
            self._nursery.start_soon(context.tracing.run)

    @property
    def metrics(self) -> Metrics:
        """The metrics at ``/metrics``."""
        return self._context.metrics

    @property
    def shutdown_seconds(self) -> float:
        """Seconds for which running operations may continue after the signal to shut down."""
        return self._context.shutdown_seconds

    def not_ready_reason(self) -> str | None:
        """Explain why the router cannot serve: it needs the shards, and users must be able to log in. None if ready.

        It is ready even without a primary of the config servers, or any answer from them. Operations still use the
        routing cache, and users who have logged in before still can. A load balancer that removed all routers would
        cause an outage; a metric reports the state instead.
        """
        context = self._context
        if context.quiesce.has_begun:
            return "shutting down"
        if not context.shards.is_known:
            return "the shards of the cluster are not known yet"
        if context.access is not None and not context.access.users.may_log_in:
            return "no user can log in while the config servers do not answer"
        return None

    def serving(self, server: Server) -> None:
        """Export the server's connections and the caches as metrics."""
        context = self._context
        server.answers.frame_error = self._frame_error
        server.passages = self._passages
        context.clients.begin(server)
        measure_connections(context.metrics, server, context.pools)
        export_metrics(context)

    def _frame_error(self, request_id: int, error: CommandError) -> bytes:
        context = self._context
        return signed(framed_error(request_id, error, context.clock), context.signer)

    async def rotate_certificates(self, message: str) -> None:
        """Read certificates again, see `rotate_certificates`."""
        rotate_certificates(self._context.transport.tls, message)

    def reconfigure(self, reread: Reread) -> tuple[str, ...]:
        """Apply the options that changed.

        Returns the parameters that keep their values until a restart: they cannot change at run time, or were removed.
        """
        if "slow_ms" in reread.changed:
            self._context.slow_operations.change(reread.values.slow_ms, None)
        before, self._given_parameters = self._given_parameters, reread.values.parameters
        return self._context.parameters.change_given(before, self._given_parameters)

    async def begin_shutdown(self, seconds: float) -> None:
        """Notify clients that wait on hello before their connections are closed."""
        self._context.quiesce.begin(seconds)


def _check_feature_version(version: int) -> None:
    check_fitness(refusal(version))


async def _refresh_cluster_settings(context: RouterContext) -> None:
    """Read the default read and write concerns and the chunk size until cancelled."""

    async def refresh() -> None:
        context.default_concerns.take(answer_in(await context.catalog.command({"getDefaultRWConcern": 1})))
        context.chunk_bytes_max = await context.catalog.read(read_chunk_size())

    while True:
        await context.catalog.attempt(refresh)
        await trio.sleep(_SETTINGS_INTERVAL_SECONDS)


class MongosRegistration:
    """Writer of the entry, at the start and every ten seconds as in mongos."""

    def __init__(self, catalog: CatalogClient, address: str) -> None:
        self._catalog = catalog
        self._address = address
        self._created = datetime.now(UTC)

    async def run(self) -> None:
        """Keep the entry current until cancelled."""
        while True:
            await self._catalog.attempt(self._ping)
            await trio.sleep(_REGISTRATION_INTERVAL_SECONDS)

    async def _ping(self) -> None:
        """Write the entry; raises a BackendError also for a write error."""
        entry = {
            "advisoryHostFQDNs": [],
            "created": self._created,
            "mongoVersion": MONGODB_VERSION,
            "ping": "",
            "up": Int64((datetime.now(UTC) - self._created).total_seconds()),
            "waiting": True,
            **router_fields(self._created),
        }
        # The time of the config servers' primary: readers compare the entries with each other and with the present.
        fields = {name: {"$literal": value} for name, value in entry.items()} | {"ping": "$$NOW"}
        update = {"q": {"_id": self._address}, "u": [{"$set": fields}], "upsert": True}
        reply = await self._catalog.client.command("config", {"update": "mongos", "updates": [update]})
        if reply.get("writeErrors"):
            raise BackendError("config", str(reply["writeErrors"][0].get("errmsg")), sent=True)


def export_metrics(context: RouterContext) -> None:
    """Export a router's counts and its view of the cluster."""
    _export_shards(context, context.metrics)
    _export_routing(context, context.metrics)
    _export_clients(context, context.metrics)


def _export_shards(context: RouterContext, metrics: Metrics) -> None:
    operations, counts = metrics.operations, context.shard_counts

    def known() -> tuple[str, ...]:
        return tuple(shard.id for shard in context.shards.known())

    def monitors() -> Iterable[tuple[str, ReplicaSetMonitor]]:
        return ((shard.id, shard.client.monitor) for shard in context.shards.known())

    metrics.gauge(
        "config_primary_known",
        "1 if a primary of the config servers is known, else 0: only cached routing can be used",
        lambda: context.catalog.client.monitor.primary is not None,
    )
    metrics.labelled_gauge(
        "shard_primary_known",
        "1 if a primary of the shard is known, else 0; the config servers are a shard here",
        "shard",
        lambda: {shard: monitor.primary is not None for shard, monitor in monitors()},
    )
    metrics.gauges(
        "shard_members",
        "Members of each shard by whether they have answered the last hello",
        ("shard", "state"),
        lambda: _members(monitors()),
    )
    metrics.histograms(
        "shard_request_duration_seconds",
        "Time from sending a request to a shard until its reply",
        ("shard",),
        lambda: durations(counts.statistics(operations, known())),
        counts.exemplars,
    )
    metrics.observed_counters(
        "shard_bytes",
        "Bytes of requests to each shard and of its replies",
        ("shard", "direction"),
        lambda: transferred(counts.statistics(operations, known())),
    )
    metrics.observed_counters(
        "shard_errors",
        "Requests that a shard did not answer, or answered with an error",
        ("shard", "kind"),
        lambda: counts.errors(known()),
    )


def _export_routing(context: RouterContext, metrics: Metrics) -> None:
    routing, cache = context.routing.statistics, context.routing
    count = metrics.observed_counter
    count("full_refreshes", "Full refreshes of routing tables", lambda: routing.full_refreshes)
    count("incremental_refreshes", "Incremental refreshes of routing tables", lambda: routing.incremental_refreshes)
    count("failed_refreshes", "Failed refreshes of routing tables", lambda: routing.failed_refreshes)
    count("refresh_seconds", "Time spent on refreshes of routing tables", lambda: routing.refresh_seconds)
    count(
        "stale_config_errors",
        "StaleConfig and StaleDbVersion errors received from shards",
        lambda: routing.stale_config_errors,
    )
    metrics.labelled_gauge(
        "routing_cache_entries",
        "Databases and collections in the routing cache",
        "kind",
        lambda: {"database": len(cache.databases), "collection": len(cache.collections)},
    )
    metrics.observed_counters(
        "targeted_operations",
        "Successful reads and writes by the part of a collection's shards that they were sent to",
        ("command", "target"),
        context.target_counts.by_command_and_part,
    )
    metrics.observed_counters(
        "write_statements",
        "Statements of writes that were executed",
        ("kind",),
        lambda: {(kind.command,): number for kind, number in context.statement_counts.items()},
    )


def _export_clients(context: RouterContext, metrics: Metrics) -> None:
    cursors, transactions = context.cursors, context.transactions
    metrics.gauge(
        "open_cursors_of_closed_connections",
        "Open client cursors whose last client connection has closed",
        lambda: cursors.statistics().open_of_closed_connections,
    )
    metrics.gauge("open_cursors", "Open client cursors", lambda: cursors.statistics().open_total)
    metrics.gauge(
        "open_transactions", "Open transactions of clients", lambda: len(transactions.sessions_with_open_ones())
    )
    metrics.observed_counters(
        "transactions_ended",
        "Transactions by their outcome",
        ("outcome",),
        lambda: {
            ("committed",): transactions.statistics.committed,
            ("aborted",): transactions.statistics.aborts.total(),
        },
    )
    metrics.gauge(
        "sessions",
        "Logical sessions used here since their uses were last written to the config servers",
        lambda: len(context.sessions),
    )


def _members(monitors: Iterable[tuple[str, ReplicaSetMonitor]]) -> dict[tuple[str, ...], float]:
    numbers: dict[tuple[str, ...], float] = {}
    for shard, monitor in monitors:
        known = sum(member.is_known for member in monitor.members.values())
        numbers[shard, "known"] = known
        numbers[shard, "unknown"] = len(monitor.members) - known
    return numbers
