"""An accepted connection before its first request: the decision for TLS, the handshake, refusals.

The number of connections at this stage is limited. They do not count as clients yet, so that strangers who begin
handshakes cannot displace clients that have finished theirs.

One port accepts both kinds, as in MongoDB. The first bytes of a plain client are the header of a request, whose
``responseTo`` is 0 or -1. Anything else begins a handshake.

Refused connections are logged with their number, at most one line per second. A burst of thousands would fill the log
just when it is needed.
"""

import socket
from typing import Final

import trio
from trio.lowlevel import wait_readable

from shardwright.wire.frames import HEADER_BYTES, Header
from shardwright.wire.logger import get_logger
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.sockets import TlsHandshakeError, accept_handshake
from shardwright.wire.transport.stream import FrameStream
from shardwright.wire.transport.transport import Transport

HANDSHAKE_SECONDS_MAX: Final = 10.0
"""Time limit from the connection to the end of the handshake."""

HANDSHAKES_MAX: Final = 1000
"""Most connections at this stage on a server for many clients.

Suffices for the start of a large application, and costs no more memory than some thousand clients.
"""

HANDSHAKES_MIN: Final = 100
"""Most connections at this stage on a server for few clients, which may still all connect at once."""

_SHARE: Final = 4

_ANSWERS_NOTHING: Final = frozenset({0, -1})


class Arrivals:
    """The connections of one server at this stage; when there are too many, the oldest is closed.

    The limit ``count_max`` follows by default from the server's limit on clients, ``connections_max``.
    """

    def __init__(self, transport: Transport, count_max: int | None, connections_max: int) -> None:
        self._transport = transport
        self._count_max = count_max or max(HANDSHAKES_MIN, min(HANDSHAKES_MAX, connections_max // _SHARE))
        self._scopes: dict[socket.socket, trio.CancelScope] = {}  # the oldest is first

    def __len__(self) -> int:
        """Return the number of these connections."""
        return len(self._scopes)

    def needs_greeting(self, accepted: socket.socket) -> bool:
        """Whether `greet` has to be called for an accepted connection: with TLS.

        UNIX sockets belong to this user alone, so TLS serves only to show the certificates of members there.
        """
        if self._transport.tls.accepting is None:
            return False
        return accepted.family != socket.AF_UNIX or self._transport.cluster_auth.accepts_certificate

    def add(self, accepted: socket.socket) -> trio.CancelScope:
        """Register an accepted connection; return the scope in which to `greet` it."""
        if len(self._scopes) >= self._count_max:
            self._scopes.pop(next(iter(self._scopes))).cancel()
        scope = self._scopes[accepted] = trio.CancelScope()
        return scope

    async def greet(self, accepted: socket.socket, peer: str, scope: trio.CancelScope) -> ClientConnection | None:
        """Call `greet` in the scope that `add` has returned.

        Raises TlsHandshakeError also if newer connections needed the room.
        """
        try:
            with scope:
                return await greet(self._transport, accepted, peer)
        finally:
            self._scopes.pop(accepted, None)
        raise TlsHandshakeError("too many clients shake hands, and this one has taken the longest")


async def greet(transport: Transport, accepted: socket.socket, peer: str) -> ClientConnection | None:
    """Detect whether a client uses TLS, and shake hands; return None if it left before it sent anything.

    On failure, such as a missing or slow handshake, the socket is closed and TlsHandshakeError raised.
    """
    accepted.setblocking(False)
    try:
        with trio.fail_after(HANDSHAKE_SECONDS_MAX):
            return await _greet(transport, accepted, peer)
    except BaseException as error:
        accepted.close()
        if isinstance(error, trio.TooSlowError):
            raise TlsHandshakeError(f"the client took more than {HANDSHAKE_SECONDS_MAX:g} s to shake hands") from error
        raise


async def _greet(transport: Transport, accepted: socket.socket, peer: str) -> ClientConnection | None:
    beginning = await _receive_header(accepted)
    if not beginning:
        accepted.close()
        return None
    if len(beginning) == HEADER_BYTES and Header(beginning).response_to in _ANSWERS_NOTHING:
        if not transport.tls.settings.mode.accepts_plain and accepted.family != socket.AF_UNIX:
            raise TlsHandshakeError("The server is configured to only allow SSL connections")
        return ClientConnection(FrameStream(accepted, received=beginning), peer, transport.unread_replies)
    secured = await accept_handshake(transport.tls, accepted, received=beginning)
    client = ClientConnection(FrameStream(secured), peer, transport.unread_replies)
    client.certificate_subject = secured.peer_subject
    client.tls_version = secured.version
    return client


async def _receive_header(accepted: socket.socket) -> bytes:
    """Receive the first bytes, as many as a header has; fewer if the client closes."""
    beginning = b""
    while len(beginning) < HEADER_BYTES:
        await wait_readable(accepted)
        try:
            received = accepted.recv(HEADER_BYTES - len(beginning))
        except BlockingIOError:
            continue
        if not received:
            break
        beginning += received
    return beginning


logger = get_logger("wire.server")

_INTERVAL_SECONDS: Final = 1.0


class RefusalLog:
    """Counter of refused connections, which `run` logs."""

    def __init__(self) -> None:
        self.refused = 0
        self._logged = 0
        self._latest: tuple[str, int] = ("", 0)
        self._noted = trio.Event()

    def note(self, peer: str, open_connections: int) -> None:
        """Count a connection refused because ``open_connections`` is the maximum."""
        self.refused += 1
        self._latest = (peer, open_connections)
        self._noted.set()

    async def run(self) -> None:
        """Log until cancelled."""
        while True:
            await self._noted.wait()
            self._noted = trio.Event()
            self._log()
            await trio.sleep(_INTERVAL_SECONDS)

    def _log(self) -> None:
        peer, open_connections = self._latest
        logger.warning(
            "Connections refused because there are too many open connections",
            refused_count=self.refused - self._logged,
            remote=peer,
            connection_count=open_connections,
        )
        self._logged = self.refused
