"""What becomes of each request: a command of the config server is run here, everything else is mongod's."""

from time import perf_counter
from typing import Any, Final

import bson

from configd.config_server import ConfigServer
from configd.dispatcher import is_config_command, run_config_command
from daemon.logs import get_logger
from daemon.metrics import Metrics
from daemon.operation_metrics import OK
from daemon.sidecar.upstream import Upstream
from wire.error_codes import Category, has_category
from wire.errors import BackendError, CommandError
from wire.hello import HELLO_NAMES
from wire.message import reply_document
from wire.request import Request
from wire.transport.server import ClientConnection

logger = get_logger("configd.operations")

# A failed command's reply begins with ok: 0.
_FAILED: Final = b"\x01ok\0" + bytes(8)
_BODY_ELEMENTS_AT: Final = 25

_WAITING: Final = frozenset({*HELLO_NAMES, "getMore"})


class ConfigHandler:
    """Handles the requests of all clients of a config daemon (see `wire.transport.server.Handler`)."""

    def __init__(self, server: ConfigServer, metrics: Metrics) -> None:
        self._server = server
        self._observe = metrics.operations.observe
        self._slow_seconds = server.options.slow_ms / 1000

    def connection_opened(self, client: ClientConnection) -> None:
        """A client has connected."""
        client.state = self._server.sidecar.open_upstream(client)

    def connection_closed(self, client: ClientConnection) -> None:
        """A client has gone, and its connection to the mongod goes with it."""
        client.state.close()

    async def handle(self, client: ClientConnection, request: Request) -> bytes | None:
        """Answer one request.

        Raises:
            CommandError: a command of the config server failed.
        """
        started = perf_counter()
        outcome = OK
        try:
            reply = await self._dispatch(client, client.state, request)
            if reply is not None and reply.startswith(_FAILED, _BODY_ELEMENTS_AT):
                outcome = _code_name(reply)
            return reply
        except CommandError as error:
            outcome = error.code_name
            raise
        except BackendError:
            # The client is to find its connection broken, as it would if the mongod itself had gone.
            outcome = "connection lost"
            client.is_finished = True
            return None
        finally:
            seconds = perf_counter() - started
            self._observe(request.name, outcome, seconds)
            if seconds >= self._slow_seconds and request.name not in _WAITING:
                logger.info(
                    "Slow operation",
                    connection_id=client.id,
                    command=request.name,
                    db=request.db,
                    duration_ms=round(seconds * 1000, 1),
                    outcome=outcome,
                )

    async def _dispatch(self, client: ClientConnection, upstream: Upstream, request: Request) -> bytes | None:
        if is_config_command(request.name):
            return await self._run_config_command(client, request)
        if request.name in HELLO_NAMES:
            return await self._server.sidecar.answer_hello(client, upstream, request)
        # Mongod itself ends what is useless without its client.
        client.allow_interruption()
        await self._server.sidecar.prepare(request)
        return await upstream.forward(request.message.frame, request.message.flags)

    async def _run_config_command(self, client: ClientConnection, request: Request) -> bytes:
        try:
            reply = await run_config_command(request, client.peer, self._server.wait_for_primary)
        except CommandError as error:
            if not has_category(error.code, Category.NOT_PRIMARY):
                raise
            # Tells a driver whether its knowledge of this member is older than the error; without it, it would have to
            # assume so, and ask again before it uses the member for anything.
            version = self._server.sidecar.mirror.version.document()
            extra = {**error.extra, "topologyVersion": version}
            raise CommandError(error.code, error.message, labels=error.labels, extra=extra) from error
        return reply_document(request.message.request_id, reply)


def _code_name(reply: bytes) -> str:
    document: dict[str, Any] = bson.decode(reply[21:])
    return str(document.get("codeName", document.get("code", "unknown")))
