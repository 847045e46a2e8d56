"""The shard daemon as a service of `daemon.run`."""

from typing import Final

import trio

from shardwright.daemon.metrics import Metrics, measure_connections
from shardwright.daemon.reload import Reread
from shardwright.daemon.sidecar.member_metrics import MemberMetrics
from shardwright.daemon.sidecar.rotations import rotate_certificates_of_both
from shardwright.shardd.commands.server_parameters import set_parameter
from shardwright.shardd.commands.shard_commands import SHARD_COMMANDS
from shardwright.shardd.handler import ShardHandler
from shardwright.shardd.options import ShardOptions
from shardwright.shardd.resharding.service import export_metrics
from shardwright.shardd.shard_server import ShardServer
from shardwright.wire.error_codes import ErrorCode, code_name
from shardwright.wire.hello import HELLO_NAMES
from shardwright.wire.transport.server import Server

SHUTDOWN_SECONDS: Final = 5.0

_FORWARDED: Final = (
    *("abortTransaction", "aggregate", "buildInfo", "collMod", "collStats", "commitTransaction", "count", "create"),
    *("createIndexes", "currentOp", "dataSize", "dbStats", "delete", "distinct", "drop", "dropDatabase"),
    *("dropIndexes", "endSessions", "explain", "find", "findAndModify", "findandmodify", "getMore", "getParameter"),
    *("insert", "killCursors", "listCollections", "listDatabases", "listIndexes", "ping", "renameCollection"),
    *("serverStatus", "splitVector", "update", "validate"),
)
"""Forwarded commands that are counted by name; all others are counted together."""


class ShardService(ShardHandler):
    """The `daemon.run.Daemon` of a shard."""

    shutdown_seconds = SHUTDOWN_SECONDS

    def __init__(self, options: ShardOptions, nursery: trio.Nursery) -> None:
        self.metrics = Metrics("shardd", (*SHARD_COMMANDS.names, *HELLO_NAMES, *_FORWARDED))
        self._server: Server | None = None
        self._shard = ShardServer(options, self.metrics, nursery, self._close_clients)
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
    async def start(cls, options: ShardOptions, nursery: trio.Nursery) -> "ShardService":
        """Create the daemon and start its background tasks."""
        service = cls(options, nursery)
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
