"""Request handling: commands of the config server are run here, everything else is passed on to mongod."""

from functools import partial
from typing import Final

from shardwright.configd import fail_point_commands
from shardwright.configd.catalog.transactions import gossip
from shardwright.configd.commands.config_commands import CONFIG_COMMANDS
from shardwright.configd.config_server import ConfigServer
from shardwright.configd.dispatcher import run_config_command
from shardwright.daemon.current_op import find_operations, found_operations
from shardwright.daemon.metrics import Metrics
from shardwright.daemon.namespaces import namespace_of
from shardwright.daemon.sidecar.access import SidecarAccess
from shardwright.daemon.sidecar.handler import SidecarHandler
from shardwright.daemon.sidecar.member_addresses import with_own_host
from shardwright.daemon.sidecar.member_login import change_mode_of_both
from shardwright.daemon.sidecar.member_metrics import with_sharding_statistics
from shardwright.daemon.sidecar.own_operations import asks_for_users_own, union_with, with_daemon_operations
from shardwright.daemon.sidecar.rotations import ROTATIONS, rotate_both
from shardwright.daemon.sidecar.upstream import Upstream
from shardwright.sharding.bson_text import command_text
from shardwright.sharding.catalog.reads import CONFIG
from shardwright.sharding.clock import CLUSTER_TIME
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import CommandError
from shardwright.wire.hello import HELLO_NAMES
from shardwright.wire.logger import get_logger
from shardwright.wire.message import reply_document
from shardwright.wire.request import Request
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor

logger = get_logger("configd.operations")

_ABOUT_NAMESPACES: Final = frozenset(each.name for each in CONFIG_COMMANDS if each.names_namespace)
_WITHOUT_NAMESPACE: Final = frozenset(each.name for each in CONFIG_COMMANDS if each.admin_only) - _ABOUT_NAMESPACES

_CATALOG_STAYS: Final = "Cannot drop 'config' database if mongod started with --configsvr"


class ConfigHandler(SidecarHandler):
    """Handles the requests of all clients of a config daemon (see `wire.transport.server.Handler`)."""

    def __init__(self, server: ConfigServer, metrics: Metrics) -> None:
        self._server = server
        access = SidecarAccess(CONFIG_COMMANDS, self._answers_itself, command_text, server.sidecar.has_to_prepare)
        options = server.options
        super().__init__(server.sidecar, metrics, options.slow_ms, logger, access, options.logs, options.audit)

    def namespace_of(self, request: Request) -> str:
        """The namespace of a request, for the log."""
        return namespace_of(request, in_full=_ABOUT_NAMESPACES, without=_WITHOUT_NAMESPACE)

    def _answers_itself(self, request: Request) -> bool:
        """Whether the daemon answers a request itself, and not its mongod."""
        return request.name in CONFIG_COMMANDS or fail_point_commands.is_about(self._server.fail_points, request)

    @may_run_in_reactor
    async def dispatch(self, client: ClientConnection, upstream: Upstream, request: Request) -> bytes | None:
        """Determine the kind of a request and answer it (see `SidecarHandler.dispatch`).

        Raises:
            CommandError: IllegalOperation, it would drop the catalog.
        """
        await in_own_task()
        if request.name in CONFIG_COMMANDS:
            return await self._run_config_command(client, request)
        if fail_point_commands.is_about(self._server.fail_points, request):
            client.allow_interruption()
            return reply_document(
                request.message.request_id, await fail_point_commands.run(self._server.fail_points, request)
            )
        if request.name in HELLO_NAMES:
            return await self._server.sidecar.answer_hello(client, upstream, request)
        if request.name in ROTATIONS:
            return await rotate_both(upstream, request, self.logs)
        if request.name == "dropDatabase" and request.db == CONFIG:
            raise CommandError(ErrorCode.IllegalOperation, _CATALOG_STAYS)
        if request.name == "setParameter":
            return await change_mode_of_both(upstream, request)
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
