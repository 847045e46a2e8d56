"""The client side: one connection to a remote host, with at most one request in progress.

Daemons on the same machine use UNIX sockets, at half the cost of TCP over the loopback interface. A daemon that is
started with a socket directory also listens on a socket there, named after its address. Daemons with the same directory
find each other's sockets by that name. Without a socket, or a process that listens on it, they use TCP.
"""

import errno
import platform
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import bson
import trio
from trio.lowlevel import wait_writable

from shardwright.wire.errors import (
    CommandError,
    ConnectFailedError,
    ConnectionClosedError,
    LocalProtocolError,
    RemoteProtocolError,
)
from shardwright.wire.frames import OP_MSG, Header, is_whole_frame, next_request_id
from shardwright.wire.message import MORE_TO_COME, OpMsg, op_msg
from shardwright.wire.rawbson import decode_exactly
from shardwright.wire.tls import ProcessTls, Subject
from shardwright.wire.transport.reactor import in_own_task, may_run_in_reactor
from shardwright.wire.transport.reply_memory import Relay
from shardwright.wire.transport.sockets import TlsSocket, dial_handshake
from shardwright.wire.transport.stream import SERVER_LIMITS, FrameStream
from shardwright.wire.transport.transport import Transport

CONNECT_SECONDS_MAX: Final = 20.0

_SILENCE_ERRNOS: Final = frozenset({errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH})
"""Errors of an unreachable host; a reachable one without a listening process refuses the connection."""


def handshake_document(application: str) -> dict[str, Any]:
    """Build the hello for our own connections; a mongod shows ``application`` in its log and ``currentOp``."""
    return {
        "hello": 1,
        "helloOk": True,
        "client": {
            "application": {"name": application},
            "driver": {"name": "shardwright", "version": "0.1.0"},
            "os": {"type": platform.system(), "architecture": platform.machine()},
        },
        "$db": "admin",
    }


class Connection:
    """A connection to one remote host.

    Methods raise ConnectionClosedError if the peer broke the connection, and RemoteProtocolError if a frame is not the
    reply to its request.

    Attributes:
        address: ``host:port``, or the path of a UNIX socket.
        hello: the reply to the handshake.
        broken_off: the reason given to `break_off`, or "".
        silent_host: the host to blame for it: the peer, or one from which the peer was reading for the request.
        take_abandoned: takes over the stream when a sent request is cancelled; without it, the stream is closed.
    """

    __slots__ = (
        "_certificate",
        "_cluster_auth",
        "_was_abandoned",
        "address",
        "broken_off",
        "hello",
        "idle_since",
        "silent_host",
        "stream",
        "take_abandoned",
    )

    def __init__(self, transport: Transport, address: str, stream: FrameStream) -> None:
        self.address = self.silent_host = address
        self.broken_off = ""
        self.stream = stream
        self._cluster_auth = transport.cluster_auth
        self._certificate: Subject | None = None
        stream.make_room = transport.unread_replies.reservations.reserve
        self.hello: dict[str, Any] = {}
        self.idle_since = 0.0
        self.take_abandoned: Callable[[FrameStream], None] | None = None
        self._was_abandoned = False

    @classmethod
    @may_run_in_reactor
    async def open(
        cls, transport: Transport, address: str, *, handshake: Mapping[str, Any] | None = None
    ) -> "Connection":
        """Connect to ``address`` and, if one is given, send the handshake and log in as a part of the cluster.

        A connection without a handshake is for a client that sends its own.

        Raises:
            ConnectFailedError: refused, unreachable, not within `CONNECT_SECONDS_MAX`, or the handshake or the log-in
                failed.
        """
        await in_own_task()
        connection: Connection | None = None
        try:
            with trio.fail_after(CONNECT_SECONDS_MAX):
                connected = await _connect(transport, address)
                connection = cls(transport, address, FrameStream(connected, limits=SERVER_LIMITS))
                connection._certificate = connected.peer_subject if isinstance(connected, TlsSocket) else None
                if handshake is not None:
                    connection.hello = await connection.command_document(handshake)
                    await connection.log_in()
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, (OSError, trio.TooSlowError, ConnectionClosedError, CommandError)):
                raise ConnectFailedError(
                    address,
                    f"could not connect: {error or 'timed out'}",
                    sent=False,
                    is_silent=isinstance(error, trio.TooSlowError) or getattr(error, "errno", None) in _SILENCE_ERRNOS,
                ) from error
            raise
        return connection

    async def log_in(self) -> None:
        """Log in as a part of the cluster, if there is access control; raises as `ClusterAuth.log_in`."""
        await self._cluster_auth.log_in(self.command, self._certificate)

    @property
    def socket(self) -> socket.socket:
        """The socket, for code that watches it."""
        return self.stream.socket

    @property
    def is_closed(self) -> bool:
        """Whether the connection was closed, by `close` or after an error, or abandoned."""
        return self.stream.is_closed or self._was_abandoned

    @may_run_in_reactor
    async def exchange(self, frame: bytes) -> bytes:
        """Send a request frame and wait for its reply.

        On failure the connection is closed, because a later reader could get this reply. On cancellation it is
        abandoned (`abandon`).

        Raises:
            CommandError: ExceededMemoryLimit, there is no memory for the reply (`wire.transport.reservations`).
        """
        await self.ask(frame)
        reply = await self.receive_answer(frame, None)
        assert reply is not None, "nothing has forwarded it"
        return reply

    @may_run_in_reactor
    async def exchange_for(self, frame: bytes, relay: Relay) -> bytes | None:
        """Send a request; return its reply, or None if the relay forwarded a long one while it was still arriving.

        After an error the receiver may have got part of the reply; its connection is then closed too. Raises OSError if
        the receiver broke its connection.
        """
        await self.ask(frame)
        return await self.receive_answer(frame, relay)

    @may_run_in_reactor
    async def ask(self, frame: bytes) -> None:
        """Send a request. Before any other use of the connection, `receive_answer` must read the reply."""
        complete = False
        try:
            rest = self.stream.post(frame)
            if rest is not None:
                await self.stream.send_rest(rest)
            complete = True
        except OSError as error:
            raise ConnectionClosedError(self.address, f"connection broke: {error}", sent=True) from error
        finally:
            if not complete:
                self.close()

    @property
    def is_quiet(self) -> bool:
        """Whether a request may be posted on the stream: no unread bytes, and no unsent ones."""
        return self.stream.is_quiet and not self._was_abandoned

    async def wait_answer_begun(self) -> None:
        """Wait until the reply to the request that was sent begins to arrive, or the peer has closed.

        After a cancellation, the reply can still be read.
        """
        with suppress(OSError):  # `receive_answer` will raise it
            await self.stream.wait_begun()

    @may_run_in_reactor
    async def receive_answer(self, frame: bytes, relay: Relay | None) -> bytes | None:
        """Read the reply to the request that was sent; with a relay, forward a long one (`exchange_for`)."""
        stream = self.stream
        complete = False
        try:
            reply = await (stream.receive() if relay is None else stream.receive_beginning())
            if reply is None:
                raise ConnectionClosedError(self.silent_host, self.broken_off or "closed the connection", sent=True)
            if reply[8:12] != frame[4:8]:
                raise RemoteProtocolError(f"{self.address} answered another request than the one it was sent")
            if relay is not None and not is_whole_frame(reply):
                reply = await stream.relay(reply, relay)
            complete = True
            return reply
        except OSError as error:
            if relay is not None and relay.is_receiver_gone:
                raise
            reason = self.broken_off or f"connection broke: {error}"
            raise ConnectionClosedError(self.silent_host, reason, sent=True) from error
        except RemoteProtocolError as error:
            if not self.broken_off:
                raise
            raise ConnectionClosedError(self.silent_host, self.broken_off, sent=True) from error
        except trio.Cancelled:
            if relay is None or not relay.has_begun:
                self.abandon()
            raise
        finally:
            if not complete and not self._was_abandoned:
                stream.close()

    @may_run_in_reactor
    async def send(self, frame: bytes) -> None:
        """Send a frame that gets no reply (it has the flag `MORE_TO_COME`)."""
        if not frame[16] & MORE_TO_COME:
            raise LocalProtocolError("a request that gets an answer has to be exchanged")
        try:
            await self.stream.send(frame)
        except OSError as error:
            self.close()
            raise ConnectionClosedError(self.address, f"connection broke: {error}", sent=True) from error

    @may_run_in_reactor
    async def receive(self) -> bytes:
        """Receive the next frame of an exhaust reply, which the peer sends without a request."""
        try:
            frame = await self.stream.receive()
        except OSError as error:
            self.close()
            raise ConnectionClosedError(self.address, f"connection broke: {error}", sent=True) from error
        if frame is None:
            raise ConnectionClosedError(self.address, "closed the connection", sent=True)
        return frame

    @may_run_in_reactor
    async def command(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run a command given as a dict and return its decoded reply; raise CommandError if it is ``ok: 0``."""
        return await self.command_document({**command, "$db": db})

    @may_run_in_reactor
    async def command_document(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Run a command like `command`, for a document that already names its ``$db``."""
        reply = decode_reply(await self.exchange(op_msg(bson.encode(document), request_id=next_request_id())))
        if not reply.get("ok"):
            raise CommandError.from_reply(reply)
        return reply

    def abandon(self) -> None:
        """Abandon the request that was sent, and the connection. A mongod then ends the operation.

        If the operation opens a cursor nevertheless, `take_abandoned` kills it.
        """
        if self.take_abandoned is None or self.stream.is_closed:
            self.stream.close()
        elif not self._was_abandoned:
            self._was_abandoned = True
            self.take_abandoned(self.stream)

    def break_off(self, reason: str, silent_host: str | None = None) -> None:
        """Fail a request in progress with a ConnectionClosedError: the peer, or ``silent_host``, will not answer."""
        if not self._was_abandoned and not self.broken_off:
            self.broken_off = reason
            self.silent_host = silent_host or self.address
            self.stream.break_off()

    def close(self) -> None:
        """Close at once."""
        if not self._was_abandoned:
            self.stream.close()


class Begun:
    """An operation whose requests were posted, each on a connection that `is_quiet`, and whose replies are pending.

    Most operations have one request. Several replies are received one after the other.

    Attributes:
        connection: the connection whose reply is received next.
        frame: the request on that connection.
        following: the other connections without a reply so far, with their requests.
        answered: connections whose replies have been received, with the request and the reply.
        started: its start, on the clock of `time.perf_counter`.
    """

    __slots__ = ("answered", "connection", "following", "frame", "started")

    def __init__(
        self,
        connection: Connection,
        frame: bytes,
        started: float,
        following: tuple[tuple[Connection, bytes], ...] = (),
    ) -> None:
        self.connection = connection
        self.frame = frame
        self.started = started
        self.following = following
        self.answered: tuple[tuple[Connection, bytes, bytes], ...] = ()

    @property
    def posted(self) -> list[tuple[Connection, bytes]]:
        """All connections with their requests, in the order in which the replies are received."""
        answered = [(connection, request) for connection, request, _ in self.answered]
        return [*answered, (self.connection, self.frame), *self.following]

    def advance(self, reply: bytes) -> None:
        """Keep a reply, and make the first connection of `following` the next one."""
        self.answered += ((self.connection, self.frame, reply),)
        (self.connection, self.frame), *rest = self.following
        self.following = tuple(rest)

    def give_up(self) -> None:
        """Abandon the replies."""
        for connection, _, reply in self.answered:
            connection.stream.give_back(reply)  # it may have opened a cursor
            connection.abandon()
        self.connection.abandon()
        for connection, _ in self.following:
            connection.abandon()


def response_body(frame: bytes) -> bytes:
    """Return the body of an OP_MSG frame; raise RemoteProtocolError for another opcode."""
    if Header(frame).opcode != OP_MSG:
        raise RemoteProtocolError(f"a reply with opcode {Header(frame).opcode}")
    return OpMsg(frame).body


def decode_reply(frame: bytes) -> dict[str, Any]:
    """Decode the body of an OP_MSG frame; values that are stored or forwarded re-encode to the same bytes."""
    return decode_exactly(response_body(frame))


async def _connect(transport: Transport, address: str) -> socket.socket | TlsSocket:
    """Connect a non-blocking socket: a local one if there is one, else to the first address that accepts."""
    tls, shows_certificate = transport.tls, transport.cluster_auth.sends_certificate
    if address.startswith("/"):
        is_secured = shows_certificate or address in tls.settings.secured_sockets
        return await _connect_locally(tls, address, is_secured=is_secured)
    local_path = transport.local_sockets.path_of(address)
    if local_path is not None:
        with suppress(OSError):  # left over from a daemon that was killed
            return await _connect_locally(tls, local_path, is_secured=shows_certificate)
    host, _, port = address.rpartition(":")
    failure: OSError = OSError(f"no address for {host}")
    host = host.strip("[]")
    for family, _, _, _, target in await _resolve(host, port):
        try:
            connected = await _connect_socket(family, target)
            return connected if tls.dialing is None else await dial_handshake(connected, tls.dialing, host)
        except OSError as error:
            failure = error
    raise failure


async def _connect_locally(tls: ProcessTls, path: str, *, is_secured: bool) -> socket.socket | TlsSocket:
    """Connect through a UNIX socket; with TLS if a certificate has to be shown there."""
    local = _connect_unix_socket(path)
    if not is_secured or tls.dialing_locally is None:
        return local
    return await dial_handshake(local, tls.dialing_locally, None)


async def _resolve(host: str, port: str) -> Sequence[tuple[Any, Any, Any, Any, Any]]:
    try:
        return await trio.socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except ValueError as error:  # the port is not a number, or the name is impossible, such as "a..b"
        raise OSError(f"{host}:{port} is not an address: {error}") from error


def _connect_unix_socket(path: str) -> socket.socket:
    """Connect without waiting; a peer with a full queue counts as absent."""
    connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connecting.setblocking(False)
        connecting.connect(path)
    except BaseException:
        connecting.close()
        raise
    return connecting


async def _connect_socket(family: int, target: Any) -> socket.socket:  # noqa: ANN401 - as the socket module's addresses
    connecting = socket.socket(family, socket.SOCK_STREAM)
    try:
        connecting.setblocking(False)
        try:
            connecting.connect(target)
        except BlockingIOError:
            await wait_writable(connecting)
            failure = connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if failure:
                raise OSError(failure, f"connect to {target} failed") from None
    except BaseException:
        connecting.close()
        raise
    return connecting
