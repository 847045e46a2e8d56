"""The config daemon as a service for `daemon.run`."""

from typing import Final

import trio

from shardwright.configd.balancer.metrics import BalancerMetrics
from shardwright.configd.commands.config_commands import CONFIG_COMMANDS
from shardwright.configd.config_server import ConfigServer
from shardwright.configd.exported_metrics import export_metrics
from shardwright.configd.handler import ConfigHandler
from shardwright.configd.resharding.exported_statistics import export_metrics as export_resharding_metrics
from shardwright.daemon.metrics import Metrics, measure_connections
from shardwright.daemon.reload import Reread
from shardwright.daemon.sidecar.member_metrics import MemberMetrics
from shardwright.daemon.sidecar.options import SidecarOptions
from shardwright.daemon.sidecar.rotations import rotate_certificates_of_both
from shardwright.wire.hello import HELLO_NAMES
from shardwright.wire.transport.server import Server

SHUTDOWN_SECONDS: Final = 5.0

_FORWARDED: Final = (
    *("abortTransaction", "aggregate", "buildInfo", "collStats", "commitTransaction", "count", "createIndexes"),
    *("dbStats", "delete", "distinct", "endSessions", "find", "findAndModify", "getMore", "getParameter", "insert"),
    *("killCursors", "listCollections", "listDatabases", "listIndexes", "ping", "serverStatus", "update"),
)
"""Forwarded commands that are counted by name; all others are counted together."""


class ConfigService(ConfigHandler):
    """A `daemon.run.Daemon` for the config servers."""

    shutdown_seconds = SHUTDOWN_SECONDS

    def __init__(self, options: SidecarOptions) -> None:
        self.metrics = Metrics("configd", (*CONFIG_COMMANDS.names, *HELLO_NAMES, *_FORWARDED))
        self.config_server = ConfigServer(
            options,
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
    async def start(cls, options: SidecarOptions, nursery: trio.Nursery) -> "ConfigService":
        """Create the daemon and start its background tasks."""
        service = cls(options)
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
