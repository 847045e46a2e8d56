"""Clients that have not logged in although they must: limits on their messages, their time and their number.

Monitors of drivers never log in, and are not an attack: they say hello, and later poll or wait for changes. So a client
that has said hello may stay for long, unless it begins to log in. When there are too many clients, the one that has
been silent for longest is closed. A client that is waiting for an answer is never closed.

MongoDB 6.0 has no such limits. The limit of message sizes is as in its later versions.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Final

import trio

from shardwright.wire.hello import HELLO_NAMES
from shardwright.wire.limits import MESSAGE_BYTES_MAX
from shardwright.wire.logger import get_logger
from shardwright.wire.transport.client_connection import ClientConnection

if TYPE_CHECKING:
    from shardwright.wire.request import Request


logger = get_logger("wire.newcomers")

_CHECK_SECONDS: Final = 1.0
_LOG_INS: Final = frozenset({"authenticate", "saslContinue", "saslStart"})
_SPECULATIVE: Final = b"speculativeAuthenticate"
_MECHANISMS: Final = b"saslSupportedMechs"


@dataclass(frozen=True, slots=True)
class NewcomerLimits:
    """Limits on clients that have not logged in.

    Attributes:
        log_in_seconds: time limit for the first request, and for a log-in that has begun.
        idle_seconds: time limit for the silence of a client that has said hello.
        failures: the number of failed log-ins that closes a connection.
        share: the fraction of all connections that such clients may have.
    """

    log_in_seconds: float = 30.0
    idle_seconds: float = 600.0
    message_bytes: int = 16 * 1024
    failures: int = 3
    share: float = 0.8


@dataclass(slots=True)
class _Progress:
    """Progress of a client towards a log-in.

    ``heard_at`` is the time of its last request, or of its connection.
    """

    heard_at: float
    has_asked: bool = False
    began_at: float | None = None


class Newcomers:
    """The clients of one server that have not logged in.

    ``closed`` counts the connections closed because they took too long or had to make room.
    """

    def __init__(self, limits: NewcomerLimits, connections_max: int, clock: Callable[[], float] = monotonic) -> None:
        self._limits = limits
        self._count_max = max(1, int(connections_max * limits.share))
        self._clock = clock
        self._clients: OrderedDict[ClientConnection, _Progress] = OrderedDict()  # the one silent for longest is first
        self.closed = 0
        self._logged = 0

    def __len__(self) -> int:
        """Return the number of such clients."""
        return len(self._clients)

    def add(self, client: ClientConnection, *, has_asked: bool = False) -> None:
        """Register a client that has connected, or is no longer logged in; ``has_asked`` if it has sent a request."""
        client.log_ins, client.is_newcomer = self, True
        client.stream.limit_messages(self._limits.message_bytes)
        self._clients[client] = _Progress(self._clock(), has_asked)
        if len(self._clients) > self._count_max:
            self._make_room()

    def remove(self, client: ClientConnection) -> None:
        """Remove a client that has logged in or disconnected."""
        if self._clients.pop(client, None) is not None:
            client.is_newcomer = False
            client.stream.limit_messages(MESSAGE_BYTES_MAX)

    def heard(self, client: ClientConnection, request: "Request") -> None:
        """Record a request of a client."""
        progress = self._clients[client]
        progress.heard_at, progress.has_asked = self._clock(), True
        self._clients.move_to_end(client)
        if progress.began_at is None and _begins_log_in(request):
            progress.began_at = progress.heard_at

    def has_failed(self, client: ClientConnection) -> None:
        """Count a failed log-in; after too many, the error reply is the last one."""
        client.failed_log_ins += 1
        if client.failed_log_ins >= self._limits.failures:
            client.is_finished = True

    async def run(self) -> None:
        """Close the connections of clients that take too long, until cancelled."""
        while True:
            await trio.sleep(_CHECK_SECONDS)
            self.close_overdue()

    def close_overdue(self) -> None:
        """Close the connections of clients that have taken too long."""
        now = self._clock()
        for client, progress in list(self._clients.items()):
            if not client.is_busy and now > self._due(client, progress):
                self._close(client)
        if self.closed > self._logged:
            logger.warning(
                "Closed connections of clients that had not logged in", closed_count=self.closed - self._logged
            )
            self._logged = self.closed

    def _due(self, client: ClientConnection, progress: _Progress) -> float:
        """Return the time by which a client has to log in or to send another request."""
        if progress.began_at is not None:
            return progress.began_at + self._limits.log_in_seconds
        is_complete = progress.has_asked and client.stream.is_between_frames
        return progress.heard_at + (self._limits.idle_seconds if is_complete else self._limits.log_in_seconds)

    def _make_room(self) -> None:
        silent = next((client for client in self._clients if not client.is_busy), None)
        if silent is not None:
            self._close(silent)

    def _close(self, client: ClientConnection) -> None:
        self.closed += 1
        self.remove(client)
        client.scope.cancel()


def _begins_log_in(request: "Request") -> bool:
    """Whether a request begins a log-in.

    A hello that requests a user's mechanisms counts too, because it costs a query to the config servers.
    """
    if request.name in HELLO_NAMES:
        return _SPECULATIVE in request.fields or _MECHANISMS in request.fields
    return request.name in _LOG_INS
