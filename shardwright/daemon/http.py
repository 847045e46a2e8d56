"""The small HTTP server beside every daemon, for Prometheus and for supervisors and load balancers.

* ``/metrics``: Prometheus's text format.
* ``/healthz``: 200 while the process can answer at all.
* ``/readyz``: 200 when the daemon can serve clients, otherwise 503 with the reason.

HTTP/1.1 by h11; connections are kept alive but not for long. It is not meant for the open internet.
"""

import json
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import h11
import trio

from shardwright.daemon.metrics import CONTENT_TYPE, Metrics
from shardwright.wire.logger import get_logger

IDLE_SECONDS_MAX: Final = 60.0
"""How long a connection may take until its next request has been read and answered."""

REQUEST_BYTES_MAX: Final = 16 * 1024
_RECEIVE_BYTES: Final = 16 * 1024

logger = get_logger("daemon.http")


@dataclass(frozen=True, slots=True)
class Response:
    """What a path answers."""

    status: HTTPStatus
    body: bytes
    content_type: str = "application/json"


class HealthServer:
    """Answers the paths above.

    Args:
        metrics: what ``/metrics`` shows.
        not_ready_reason: asked for every ``/readyz``: None when the daemon is ready, else why it is not.
    """

    def __init__(self, metrics: Metrics, not_ready_reason: Callable[[], str | None]) -> None:
        self._metrics = metrics
        self._not_ready_reason = not_ready_reason

    def respond(self, method: bytes, target: bytes) -> Response:
        """The answer to one request, without any I/O."""
        if method not in (b"GET", b"HEAD"):
            return _json(HTTPStatus.METHOD_NOT_ALLOWED, error="only GET and HEAD")
        match target.partition(b"?")[0]:
            case b"/metrics":
                return Response(HTTPStatus.OK, self._metrics.render(), CONTENT_TYPE)
            case b"/healthz":
                return _json(HTTPStatus.OK, status="ok")
            case b"/readyz":
                reason = self._not_ready_reason()
                if reason is None:
                    return _json(HTTPStatus.OK, status="ready")
                return _json(HTTPStatus.SERVICE_UNAVAILABLE, status="not ready", reason=reason)
            case _:
                return _json(HTTPStatus.NOT_FOUND, error="no such path")

    async def serve_stream(self, stream: trio.abc.Stream) -> None:
        """Talk HTTP on one connection until it ends, breaks the protocol or idles too long."""
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=REQUEST_BYTES_MAX)
        async with stream:
            try:
                while True:
                    with trio.move_on_after(IDLE_SECONDS_MAX) as idle:
                        is_open = await self._serve_request(connection, stream)
                    if idle.cancelled_caught or not is_open:
                        return
            except trio.BrokenResourceError:
                logger.debug("An HTTP connection broke")

    def _respond_safely(self, request: h11.Request) -> Response:
        """The answer, or 500: a fault in a gauge must not take the daemon down with it."""
        try:
            return self.respond(request.method, request.target)
        except Exception:
            logger.exception("A request for metrics or health failed", target=request.target.decode("latin-1"))
            return _json(HTTPStatus.INTERNAL_SERVER_ERROR, error="internal error")

    async def _serve_request(self, connection: h11.Connection, stream: trio.abc.Stream) -> bool:
        """Read and answer one request; whether another may follow on this connection."""
        try:
            request = await _read_request(connection, stream)
            if request is None:
                return False
            has_body = request.method != b"HEAD"
            response = self._respond_safely(request)
        except h11.RemoteProtocolError as error:
            if connection.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
                return False
            has_body = True
            response = _json(HTTPStatus(error.error_status_hint), error=str(error))
        await stream.send_all(_encode(connection, response, has_body=has_body))
        if connection.our_state is h11.DONE and connection.their_state is h11.DONE:
            connection.start_next_cycle()
            return True
        return False


async def serve_http(server: HealthServer, listeners: Iterable[socket.socket]) -> None:
    """Answer on sockets that are listening already, until cancelled."""
    await trio.serve_listeners(
        server.serve_stream, [trio.SocketListener(trio.socket.from_stdlib_socket(listener)) for listener in listeners]
    )


async def _read_request(connection: h11.Connection, stream: trio.abc.Stream) -> h11.Request | None:
    """The next request with its body read to the end, or None when the client is done."""
    request: h11.Request | None = None
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(bytes(await stream.receive_some(_RECEIVE_BYTES)))
        elif isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.EndOfMessage):
            return request
        elif isinstance(event, h11.ConnectionClosed):
            return None


def _encode(connection: h11.Connection, response: Response, *, has_body: bool) -> bytes:
    head = h11.Response(
        status_code=response.status,
        reason=response.status.phrase,
        headers=[("content-type", response.content_type), ("content-length", str(len(response.body)))],
    )
    events = (head, h11.Data(response.body), h11.EndOfMessage()) if has_body else (head, h11.EndOfMessage())
    return b"".join(connection.send(event) or b"" for event in events)


def _json(code: HTTPStatus, **fields: str) -> Response:
    return Response(code, json.dumps(fields).encode() + b"\n")
