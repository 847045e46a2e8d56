"""The small HTTP server of every daemon, for Prometheus, supervisors and load balancers.

* ``/metrics``: Prometheus's text format, or OpenMetrics if the request accepts it.
* ``/healthz``: 200 while the process can answer at all.
* ``/readyz``: 200 if the daemon can serve clients, otherwise 503 with the reason.

It speaks HTTP/1.1 through h11, and closes idle connections soon. It is not meant for the public internet.
"""

import json
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import h11
import trio

from shardwright.daemon.metrics import CONTENT_TYPE, OPEN_METRICS_CONTENT_TYPE, Metrics
from shardwright.daemon.version import package_version
from shardwright.wire.logger import get_logger

IDLE_SECONDS_MAX: Final = 60.0
"""Maximum time until the next request of a connection has been read and answered."""

OPEN_METRICS: Final = b"application/openmetrics-text"
"""The accepted type of a scraper that prefers OpenMetrics."""

REQUEST_BYTES_MAX: Final = 16 * 1024
_RECEIVE_BYTES: Final = 16 * 1024

logger = get_logger("daemon.http")


@dataclass(frozen=True, slots=True)
class Response:
    """The response of a path."""

    status: HTTPStatus
    body: bytes
    content_type: str = "application/json"


class HealthServer:
    """The server of the module's paths.

    Args:
        metrics: shown by ``/metrics``.
        not_ready_reason: called for every ``/readyz``; returns None if the daemon is ready, otherwise the reason.
    """

    def __init__(self, metrics: Metrics, not_ready_reason: Callable[[], str | None]) -> None:
        self._metrics = metrics
        self._not_ready_reason = not_ready_reason

    def respond(self, method: bytes, target: bytes, accept: bytes = b"") -> Response:
        """Return the response to one request, without any I/O; ``accept`` is its header of that name."""
        if method not in (b"GET", b"HEAD"):
            return _json(HTTPStatus.METHOD_NOT_ALLOWED, error="only GET and HEAD")
        match target.partition(b"?")[0]:
            case b"/metrics":
                if OPEN_METRICS in accept:
                    return Response(HTTPStatus.OK, self._metrics.render_open_metrics(), OPEN_METRICS_CONTENT_TYPE)
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
        """Serve HTTP on one connection until it is closed, violates the protocol or is idle for too long."""
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
        """Return the response, or 500, because a faulty gauge must not stop the daemon."""
        try:
            return self.respond(request.method, request.target, dict(request.headers).get(b"accept", b""))
        except Exception:
            logger.exception("A request for metrics or health failed", target=request.target.decode("latin-1"))
            return _json(HTTPStatus.INTERNAL_SERVER_ERROR, error="internal error")

    async def _serve_request(self, connection: h11.Connection, stream: trio.abc.Stream) -> bool:
        """Read and answer one request; return whether another may follow on this connection."""
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
    """Serve HTTP on listening sockets until cancelled."""
    await trio.serve_listeners(
        server.serve_stream, [trio.SocketListener(trio.socket.from_stdlib_socket(listener)) for listener in listeners]
    )


async def _read_request(connection: h11.Connection, stream: trio.abc.Stream) -> h11.Request | None:
    """Return the next request, with its body consumed, or None if the client has finished."""
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
        headers=[
            ("server", f"shardwright/{package_version()}"),
            ("content-type", response.content_type),
            ("content-length", str(len(response.body))),
        ],
    )
    events = (head, h11.Data(response.body), h11.EndOfMessage()) if has_body else (head, h11.EndOfMessage())
    return b"".join(connection.send(event) or b"" for event in events)


def _json(code: HTTPStatus, **fields: str) -> Response:
    return Response(code, json.dumps(fields).encode() + b"\n")
