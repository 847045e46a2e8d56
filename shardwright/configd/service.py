"""The config daemon in front of one mongod of the config servers: request handling, metrics, and the command line.

Commands of the config server are run here, everything else is passed on to mongod. `run_config_command` makes the
checks common to all commands: primary, database, write concern, time limit. The daemon's own fail points have
``configureFailPoint`` and ``waitForFailPoint``; its mongod serves all others. They also run on secondaries: a fail
point can be turned off after its daemon has stepped down.

The metrics of the cluster and the balancer are empty or 0 while the daemon is not primary. The metrics of resharding
belong to its coordinator.
"""

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import trio

from shardwright.configd.balancer.balancer import BalancerMetrics
from shardwright.configd.catalog.transactions import gossip
from shardwright.configd.commands.config_commands import CONFIG_COMMANDS
from shardwright.configd.commands.operation import ConfigCommand, Operation, WriteConcernRule
from shardwright.configd.config_server import ConfigServer
from shardwright.configd.term.term import Term
from shardwright.daemon.audit_log import opened_audit_log
from shardwright.daemon.command_table import namespace_of
from shardwright.daemon.configuration.process import Rereading, introduction, process_configuration
from shardwright.daemon.configuration.table import CONFIGD
from shardwright.daemon.current_op import (
    asks_for_users_own,
    find_operations,
    found_operations,
    union_with,
    with_daemon_operations,
)
from shardwright.daemon.fail_points import FailPoints, parse_configuration, parse_wait
from shardwright.daemon.metrics import Metrics, measure_connections
from shardwright.daemon.run import Reread, run_daemon
from shardwright.daemon.sidecar.access import SidecarAccess
from shardwright.daemon.sidecar.client_authentication import change_mode_of_both
from shardwright.daemon.sidecar.handler import ROTATIONS, SidecarHandler, rotate_both, rotate_certificates_of_both
from shardwright.daemon.sidecar.member_addresses import with_own_host
from shardwright.daemon.sidecar.member_metrics import (
    CONN_POOL_STATS,
    MemberMetrics,
    with_replica_sets,
    with_sharding_statistics,
)
from shardwright.daemon.sidecar.mongod import Upstream
from shardwright.daemon.sidecar.sidecar import SidecarOptions, check_sidecar_options, secured_sockets
from shardwright.sharding.bson_text import command_text, document_text
from shardwright.sharding.catalog.reads import CONFIG
from shardwright.sharding.clock import CLUSTER_TIME
from shardwright.sharding.resharding_operation import ReshardingStatistics
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.hello import HELLO_NAMES
from shardwright.wire.logger import get_logger
from shardwright.wire.message import reply_document
from shardwright.wire.rawbson import is_string
from shardwright.wire.request import Request
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.reactor import in_own_task, may_run_in_reactor
from shardwright.wire.transport.server import Server
from shardwright.wire.transport.transport import Transport

logger = get_logger("configd.operations")

_NOT_PRIMARY: Final = "not primary"

_CONFIGURE: Final = "configureFailPoint"

_COMMANDS: Final = (_CONFIGURE, "waitForFailPoint")

_ABOUT_NAMESPACES: Final = frozenset(each.name for each in CONFIG_COMMANDS if each.names_namespace)

_WITHOUT_NAMESPACE: Final = frozenset(each.name for each in CONFIG_COMMANDS if each.admin_only) - _ABOUT_NAMESPACES

_CATALOG_STAYS: Final = "Cannot drop 'config' database if mongod started with --configsvr"

_OFF = "off"

SHUTDOWN_SECONDS: Final = 5.0

_FORWARDED: Final = (
    *("abortTransaction", "aggregate", "buildInfo", "collStats", "commitTransaction", "count", "createIndexes"),
    *("dbStats", "delete", "distinct", "endSessions", "find", "findAndModify", "getMore", "getParameter", "insert"),
    *("killCursors", "listCollections", "listDatabases", "listIndexes", "ping", "serverStatus", "update"),
)
"""Forwarded commands that are counted by name; all others are counted together."""


async def run_config_command(
    request: Request, client_address: str, wait_for_term: Callable[[], Awaitable[Term | None]]
) -> dict[str, Any]:
    """The reply, without gossip fields.

    Raises:
        CommandError: NotWritablePrimary, the mongod is not primary; InterruptedDueToReplStateChange, it has stepped
            down; MaxTimeMSExpired; or the command's own error.
    """
    command = CONFIG_COMMANDS[request.name]
    command.check_database(request)
    _check_write_concern(command, request)
    term = await wait_for_term()
    if term is None:
        raise CommandError(ErrorCode.NotWritablePrimary, _NOT_PRIMARY)
    command.check_arguments(request)
    try:
        with trio.fail_after(_seconds_max(request)) as limit:
            operation = Operation(term, request, client_address, limit)
            reply = await term.run(lambda: command.handler(operation))
    except trio.TooSlowError:
        raise CommandError(ErrorCode.MaxTimeMSExpired, "operation exceeded time limit") from None
    except BackendError as error:
        # The local mongod is gone; shards that do not answer are handled by the code that calls them.
        raise CommandError(ErrorCode.InterruptedDueToReplStateChange, f"operation was interrupted: {error}") from error
    return {**reply, "ok": 1.0}


def _check_write_concern(command: ConfigCommand, request: Request) -> None:
    write_concern = request.get(b"writeConcern")
    if command.write_concern is WriteConcernRule.UNSUPPORTED:
        if write_concern is not None:
            raise CommandError(ErrorCode.InvalidOptions, "Command does not support writeConcern")
        return
    if command.write_concern is WriteConcernRule.ANY:
        return
    if not isinstance(write_concern, Mapping) or write_concern.get("w") != "majority":
        got = request.raw_object(b"writeConcern")
        shown = '{ w: 1, wtimeout: 0, provenance: "implicitDefault" }' if got is None else document_text(got)
        raise CommandError(
            ErrorCode.InvalidOptions, f'"{command.name}" must be called with majority writeConcern, got: {shown} '
        )


def _seconds_max(request: Request) -> float:
    milliseconds = request.get(b"maxTimeMS")
    if not isinstance(milliseconds, int | float) or milliseconds <= 0:
        return math.inf
    return milliseconds / 1000


def is_about_own_fail_point(fail_points: FailPoints, request: Request) -> bool:
    """Whether a request is about one of the daemon's fail points."""
    if request.name not in _COMMANDS:
        return False
    name = request.get(request.name.encode())
    return is_string(name) and name in fail_points.names


async def run_fail_point_command(fail_points: FailPoints, request: Request) -> dict[str, Any]:
    """Run one of the two commands and return its reply; as in MongoDB, ``waitForFailPoint`` requires ``maxTimeMS``.

    Raises:
        CommandError: Unauthorized, it was not sent to the admin database; IllegalOperation, TypeMismatch, BadValue or
            40414, an argument is missing or wrong; MaxTimeMSExpired.
    """
    if request.db != "admin":
        raise CommandError(ErrorCode.Unauthorized, f"{request.name} may only be run against the admin database.")
    if request.name == _CONFIGURE:
        wanted = parse_configuration(request)
        return {"count": fail_points.configure(wanted.name, wanted.mode, wanted.data), "ok": 1.0}
    wait = parse_wait(request)
    try:
        with trio.fail_after(wait.max_time_ms / 1000):
            await fail_points.wait_entered(wait.name, wait.times)
    except trio.TooSlowError:
        raise CommandError(ErrorCode.MaxTimeMSExpired, "operation exceeded time limit") from None
    return {"ok": 1.0}


class ConfigHandler(SidecarHandler):
    """Handles the requests of all clients of a config daemon (see `wire.transport.server.Handler`)."""

    def __init__(self, server: ConfigServer, metrics: Metrics) -> None:
        self._server = server
        access = SidecarAccess(
            server.sidecar.transport.cluster_auth,
            CONFIG_COMMANDS,
            self._answers_itself,
            command_text,
            server.sidecar.has_to_prepare,
        )
        options = server.options
        super().__init__(server.sidecar, metrics, options.slow_ms, logger, access, options.logs, options.audit)

    def namespace_of(self, request: Request) -> str:
        """The namespace of a request, for the log."""
        return namespace_of(request, in_full=_ABOUT_NAMESPACES, without=_WITHOUT_NAMESPACE)

    def _answers_itself(self, request: Request) -> bool:
        """Whether the daemon answers a request itself, and not its mongod."""
        return request.name in CONFIG_COMMANDS or is_about_own_fail_point(self._server.fail_points, request)

    @may_run_in_reactor
    async def dispatch(self, client: ClientConnection, upstream: Upstream, request: Request) -> bytes | None:
        """Determine the kind of a request and answer it (see `SidecarHandler.dispatch`).

        Raises:
            CommandError: IllegalOperation, it would drop the catalog.
        """
        await in_own_task()
        if request.name in CONFIG_COMMANDS:
            return await self._run_config_command(client, request)
        if is_about_own_fail_point(self._server.fail_points, request):
            client.allow_interruption()
            return reply_document(
                request.message.request_id, await run_fail_point_command(self._server.fail_points, request)
            )
        if request.name in HELLO_NAMES:
            return await self._server.sidecar.answer_hello(client, upstream, request)
        if request.name in ROTATIONS:
            return await rotate_both(self._server.sidecar.transport.tls, upstream, request, self.logs)
        if request.name == "dropDatabase" and request.db == CONFIG:
            raise CommandError(ErrorCode.IllegalOperation, _CATALOG_STAYS)
        if request.name == "setParameter":
            return await change_mode_of_both(self._cluster_auth, upstream, request)
        return await self._server.sidecar.name_daemons(request, partial(self._forward, client, upstream))

    async def _forward(self, client: ClientConnection, upstream: Upstream, request: Request) -> bytes | None:
        # mongod itself ends operations whose client has disconnected.
        client.allow_interruption()
        await self._server.sidecar.prepare(request)
        flags = request.message.flags
        if request.name == "currentOp":
            return await self._current_op(upstream, request)
        if request.name == "serverStatus":
            section = self._server.resharding_statistics.to_section()
            return with_sharding_statistics(await upstream.forward(request.message.frame, flags), request, section)
        if request.name == CONN_POOL_STATS:
            return with_replica_sets(await upstream.forward(request.message.frame, flags), self._server.monitors())
        if request.name == "aggregate":
            request = with_own_host(request, self._server.sidecar.address)
        return await upstream.pass_on(with_daemon_operations(request, self._server.operations, upstream.user), flags)

    async def _current_op(self, upstream: Upstream, request: Request) -> bytes | None:
        operations = self._server.operations()
        if not operations or request.db != "admin" or asks_for_users_own(request, upstream.user):
            return await upstream.forward(request.message.frame, request.message.flags)
        question = find_operations(request.document, [union_with(operations)])
        found = found_operations(await upstream.command("admin", question))
        return reply_document(request.message.request_id, {"inprog": found, "ok": 1.0})

    async def _run_config_command(self, client: ClientConnection, request: Request) -> bytes:
        try:
            reply = await run_config_command(request, client.peer, self._server.wait_for_term)
        except CommandError as error:
            if not has_category(error.code, Category.NOT_PRIMARY):
                raise
            # Lets a driver see whether its state of this member is newer than the error; without it, the driver would
            # have to assume that the state is outdated, and check the member before using it again.
            version = self._server.sidecar.mirror.version.document()
            extra = {**error.extra, "topologyVersion": version}
            raise CommandError(error.code, error.message, labels=error.labels, extra=extra) from error
        reply.update(await gossip(self._server.sidecar.mongod, request.get(CLUSTER_TIME)))
        return reply_document(request.message.request_id, reply)


def export_resharding_metrics(metrics: Metrics, statistics: ReshardingStatistics) -> None:
    """Export the counts of a config daemon."""
    metrics.observed_counter(
        "reshardings_started", "Resharding operations that this daemon has begun", lambda: statistics.started
    )
    metrics.observed_counter(
        "reshardings_succeeded", "Resharding operations that were committed", lambda: statistics.succeeded
    )
    metrics.observed_counter(
        "reshardings_failed", "Resharding operations that were aborted because of an error", lambda: statistics.failed
    )
    metrics.observed_counter(
        "reshardings_canceled", "Resharding operations that a user has aborted", lambda: statistics.canceled
    )
    metrics.gauge(
        "resharding_remaining_seconds",
        "Time that the slowest recipient of the present resharding operation still needs",
        lambda: statistics.remaining_millis[1] / 1000,
    )


def export_metrics(metrics: Metrics, server: ConfigServer) -> None:
    """Export the primary's counts of shards, chunks and the balancer."""
    metrics.gauge("is_primary", "1 if the mongod of this daemon is primary, else 0", lambda: server.sidecar.is_primary)
    metrics.labelled_gauge(
        "chunks", "Chunks of all sharded collections by shard", "shard", lambda: server.census.chunks()
    )
    metrics.labelled_gauge("jumbo_chunks", "Chunks marked as jumbo by shard", "shard", lambda: server.census.jumbo())
    metrics.labelled_gauge(
        "shard_draining", "1 for a shard that is being removed, 0 for others", "shard", lambda: server.census.draining
    )
    metrics.gauge("sharded_collections", "Sharded collections of the cluster", lambda: server.census.collections)
    metrics.gauge(
        "balancer_enabled",
        "1 if the settings read last permit balancing, apart from the active window, else 0",
        lambda: server.current_term is not None and server.current_term.balancer_rounds.mode != _OFF,
    )
    metrics.gauge(
        "balancer_running",
        "1 while a round of the balancer or one of its moves is in progress, else 0",
        lambda: server.current_term is not None and server.current_term.balancer_rounds.is_balancing,
    )


class ConfigService(ConfigHandler):
    """A `daemon.run.Daemon` for the config servers."""

    shutdown_seconds = SHUTDOWN_SECONDS

    def __init__(self, options: SidecarOptions, transport: Transport) -> None:
        self.metrics = Metrics("configd", (*CONFIG_COMMANDS.names, *HELLO_NAMES, *_FORWARDED))
        self.config_server = ConfigServer(
            options,
            transport,
            self.metrics.counter("catalog_conflicts", "Catalog transactions retried because of a write conflict"),
            BalancerMetrics.of(self.metrics),
            self._close_clients,
        )
        self._server_of_clients: Server | None = None
        export_metrics(self.metrics, self.config_server)
        export_resharding_metrics(self.metrics, self.config_server.resharding_statistics)
        self._member_metrics = MemberMetrics(self.metrics, self.config_server.sidecar)
        super().__init__(self.config_server, self.metrics)

    @classmethod
    async def start(cls, options: SidecarOptions, transport: Transport, nursery: trio.Nursery) -> "ConfigService":
        """Create the daemon and start its background tasks."""
        service = cls(options, transport)
        nursery.start_soon(service.config_server.run)
        nursery.start_soon(service._member_metrics.run)
        return service

    def serving(self, server: Server) -> None:
        """Connect the daemon to its server before the first client is served."""
        self._server_of_clients = server
        measure_connections(self.metrics, server, self.config_server.pools)

    def not_ready_reason(self) -> str | None:
        """Explain why clients cannot be served at the moment; None if they can."""
        return self.config_server.not_ready_reason()

    async def rotate_certificates(self, message: str) -> None:
        """Read certificates again, here and at the mongod; errors as `rotate_certificates_of_both`."""
        await rotate_certificates_of_both(self.config_server.sidecar.mongod, message)

    def reconfigure(self, reread: Reread) -> tuple[str, ...]:
        """Apply the options that changed; a config daemon has no server parameters."""
        self.slow_seconds = reread.values.slow_ms / 1000
        return ()

    async def begin_shutdown(self, seconds: float) -> None:
        """Hand over to another member, and answer clients that wait on hello."""
        await self.config_server.sidecar.begin_shutdown(seconds)

    def _close_clients(self) -> None:
        """Close all client connections, because the mongod has closed its own."""
        if self._server_of_clients is not None:
            for client in list(self._server_of_clients.clients):
                client.scope.cancel()


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a config daemon until it receives a signal to shut down; returns the exit code."""
    found = process_configuration(CONFIGD, arguments, check=check_sidecar_options)
    options = SidecarOptions.of(found.values, opened_audit_log(CONFIGD.name, found.values))
    return run_daemon(
        CONFIGD.name,
        found.values,
        partial(ConfigService.start, options),
        introduction=introduction(found),
        read_again=None if found.file is None else Rereading(found, check_sidecar_options),
        secured_sockets=secured_sockets(found.values),
        on_log_signal=options.logs.rotate,
    )
