"""The router as a daemon: the dispatcher with its life cycle and metrics."""

import trio

from shardwright.config_servers.feature_watch import follow_feature_version
from shardwright.daemon.certificates import rotate_certificates
from shardwright.daemon.metrics import Metrics, measure_connections
from shardwright.daemon.reload import Reread
from shardwright.daemon.unfit_cluster import check_fitness
from shardwright.router.cluster_settings import refresh_cluster_settings
from shardwright.router.commands.router_commands import ROUTER_COMMANDS
from shardwright.router.context.options import RouterOptions
from shardwright.router.context.router_context import RouterContext
from shardwright.router.dispatcher import Dispatcher
from shardwright.router.exported_metrics import export_metrics
from shardwright.router.mongos_registration import MongosRegistration
from shardwright.router.processes.workers import end_with_supervisor
from shardwright.router.replies.reply_builder import framed_error
from shardwright.router.replies.reply_tail import signed
from shardwright.router.sessions.session_refresh import refresh_repeatedly
from shardwright.sharding.feature_version import refusal
from shardwright.wire.errors import CommandError
from shardwright.wire.transport.server import Server


class RouterService:
    """The service that `daemon.run` runs for ``shardwright-router``."""

    def __init__(self, options: RouterOptions, nursery: trio.Nursery) -> None:
        metrics = Metrics("router", ROUTER_COMMANDS.names)
        self._context = RouterContext(options, metrics, nursery, ROUTER_COMMANDS)
        self._registration = MongosRegistration(self._context.catalog, options.address)
        self._nursery = nursery
        self._given_parameters = options.parameters
        dispatcher = Dispatcher(self._context)
        self._passages = dispatcher.passages
        self.handle = dispatcher.handle
        self.connection_opened = dispatcher.connection_opened
        self.connection_closed = dispatcher.connection_closed
        self._slow_log = dispatcher.slow_log

    @classmethod
    async def start(cls, options: RouterOptions, nursery: trio.Nursery) -> "RouterService":
        """Create the router and start its background tasks."""
        service = cls(options, nursery)
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
        self._nursery.start_soon(refresh_cluster_settings, context)
        self._nursery.start_soon(follow_feature_version, context.catalog, _check_feature_version)
        self._nursery.start_soon(self._slow_log.run)
        self._nursery.start_soon(context.deadlines.run)

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
        rotate_certificates(message)

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
