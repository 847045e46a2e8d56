"""The shard daemon in front of one mongod: its options, its command line, and the service of `daemon.run`."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Final

import trio

from shardwright.daemon.audit_log import AuditLog, opened_audit_log
from shardwright.daemon.configuration.process import Rereading, introduction, process_configuration
from shardwright.daemon.configuration.table import SHARDD
from shardwright.daemon.metrics import Metrics, measure_connections
from shardwright.daemon.run import Reread, run_daemon
from shardwright.daemon.sidecar.handler import TracedHandler, TracedUpstream, rotate_certificates_of_both
from shardwright.daemon.sidecar.member_metrics import MemberMetrics
from shardwright.daemon.sidecar.sidecar import SidecarOptions, check_sidecar_options, secured_sockets
from shardwright.daemon.tracing import Tracing, TracingOptions, check_tracing
from shardwright.shardd.commands.command import parse_parameter, set_parameter
from shardwright.shardd.commands.shard_commands import SHARD_COMMANDS
from shardwright.shardd.handler import ShardHandler
from shardwright.shardd.resharding.service import export_metrics
from shardwright.shardd.shard_server import ShardServer
from shardwright.wire.error_codes import ErrorCode, code_name
from shardwright.wire.hello import HELLO_NAMES
from shardwright.wire.trace_context import TRACE_CONTEXT
from shardwright.wire.transport.server import Server
from shardwright.wire.transport.transport import Transport

SHUTDOWN_SECONDS: Final = 5.0

_FORWARDED: Final = (
    *("abortTransaction", "aggregate", "buildInfo", "collMod", "collStats", "commitTransaction", "count", "create"),
    *("createIndexes", "currentOp", "dataSize", "dbStats", "delete", "distinct", "drop", "dropDatabase"),
    *("dropIndexes", "endSessions", "explain", "find", "findAndModify", "findandmodify", "getMore", "getParameter"),
    *("insert", "killCursors", "listCollections", "listDatabases", "listIndexes", "ping", "renameCollection"),
    *("serverStatus", "splitVector", "update", "validate"),
)
"""Forwarded commands that are counted by name; all others are counted together."""


@dataclass(frozen=True, slots=True)
class ShardOptions(SidecarOptions):
    """Options of a sidecar and of a shard daemon, with initial values of server parameters.

    Attributes:
        tracing: the export of spans; None if tracing is off.
    """

    parameters: Mapping[str, Any] = field(default_factory=dict)
    tracing: TracingOptions | None = None

    @classmethod
    def of(cls, parsed: argparse.Namespace, audit: AuditLog | None = None) -> "ShardOptions":
        """Return the parsed options; see `SidecarOptions.of`."""
        common = SidecarOptions.of(parsed, audit)
        return cls(
            **{each.name: getattr(common, each.name) for each in fields(common)},
            parameters=dict(parsed.parameters),
            tracing=TracingOptions.of(parsed, common.address),
        )


def check_shard_options(parsed: argparse.Namespace) -> None:
    """Refuse options that do not fit together, with ValueError."""
    check_sidecar_options(parsed)
    check_tracing(parsed)


class ShardService(ShardHandler):
    """The `daemon.run.Daemon` of a shard."""

    shutdown_seconds = SHUTDOWN_SECONDS
    _more_extensions: Sequence[str] = ()

    def __init__(self, options: ShardOptions, transport: Transport, nursery: trio.Nursery) -> None:
        self.metrics = Metrics("shardd", (*SHARD_COMMANDS.names, *HELLO_NAMES, *_FORWARDED))
        self._server: Server | None = None
        self._shard = ShardServer(options, transport, self.metrics, nursery, self._close_clients, self._more_extensions)
        self._given_parameters = options.parameters
        for name, value in options.parameters.items():
            set_parameter(self._shard.components.parameters, name, value)
        stale_errors = self.metrics.labelled_counter(
            "stale_errors",
            "Operations rejected because of a stale routing version",
            "error",
            map(code_name, (ErrorCode.StaleConfig, ErrorCode.StaleDbVersion)),
        )
        export_metrics(self.metrics, self._shard.resharding.statistics)
        self._member_metrics = MemberMetrics(self.metrics, self._shard.context.sidecar)
        super().__init__(self._shard, stale_errors)

    @classmethod
    async def start(cls, options: ShardOptions, transport: Transport, nursery: trio.Nursery) -> "ShardService":
        """Create the daemon and start its background tasks."""
        kind = cls if options.tracing is None else TracedShardService
        service = kind(options, transport, nursery)
        service._shard.start()
        nursery.start_soon(service._member_metrics.run)
        return service

    def serving(self, server: Server) -> None:
        """Register the server's connection metrics; called before the first client is served."""
        self._server = server
        server.passages = self.passages
        measure_connections(self.metrics, server, self._shard.context.pools)

    def not_ready_reason(self) -> str | None:
        """Return the reason why clients cannot be served at the moment; None if they can."""
        return self._shard.context.sidecar.not_ready_reason()

    async def rotate_certificates(self, message: str) -> None:
        """Reload the certificates of this daemon and of mongod; errors as `rotate_certificates_of_both`."""
        await rotate_certificates_of_both(self._shard.context.sidecar.mongod, message)

    def reconfigure(self, reread: Reread) -> tuple[str, ...]:
        """Apply changed options; return the parameters that were removed, whose values last until a restart."""
        self.slow_seconds = self.passages.slow_seconds = reread.values.slow_ms / 1000
        before, self._given_parameters = self._given_parameters, reread.values.parameters
        for name, value in reread.values.parameters.items():
            if name not in before or before[name] != value:
                set_parameter(self._shard.components.parameters, name, value)
        return tuple(sorted(before.keys() - reread.values.parameters.keys()))

    async def begin_shutdown(self, seconds: float) -> None:
        """Step down in favour of another member, and answer the clients that await topology changes."""
        await self._shard.context.sidecar.begin_shutdown(seconds)

    def _close_clients(self) -> None:
        """Close all client connections, because a failing mongod would close its own."""
        if self._server is not None:
            for client in list(self._server.clients):
                client.scope.cancel()


class TracedShardService(TracedHandler, ShardService):
    """The daemon of a shard with tracing."""

    _more_extensions = (TRACE_CONTEXT.decode(),)

    def __init__(self, options: ShardOptions, transport: Transport, nursery: trio.Nursery) -> None:
        assert options.tracing is not None
        super().__init__(options, transport, nursery)
        self.tracing = Tracing("shardwright-shardd", options.tracing, self.metrics.operations)
        self._shard.context.sidecar.upstream_type = TracedUpstream
        nursery.start_soon(self.tracing.run)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a shard daemon until a signal or command stops it; return the exit code."""
    found = process_configuration(SHARDD, arguments, check=check_shard_options, parse_parameter=parse_parameter)
    options = ShardOptions.of(found.values, opened_audit_log(SHARDD.name, found.values))
    return run_daemon(
        SHARDD.name,
        found.values,
        partial(ShardService.start, options),
        introduction=introduction(found),
        read_again=None if found.file is None else Rereading(found, check_shard_options),
        secured_sockets=secured_sockets(found.values),
        on_log_signal=options.logs.rotate,
    )
