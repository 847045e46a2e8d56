"""The server side: accepts connections, reads one request at a time on each, and lets a handler answer it.

Common to all daemons: the limit of connections, detection of disconnects, errors that end one connection, and orderly
shutdown. `Answers` handles the kinds of messages, and the handler implements the commands.

The kernel counts the bytes exchanged with clients. The server reads the counters of each socket on demand, and before
it closes the socket (tcp(7), ``TCP_INFO``).
"""

import errno
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from struct import Struct
from typing import Final, NamedTuple

import trio
from trio.lowlevel import wait_readable

from shardwright.wire.errors import RemoteProtocolError
from shardwright.wire.limits import CONNECTIONS_MAX
from shardwright.wire.logger import get_logger
from shardwright.wire.transport.accepting import Arrivals, RefusalLog
from shardwright.wire.transport.answers import Answers, Handler
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.disconnects import DisconnectWatcher
from shardwright.wire.transport.express_lane import ExpressLane, Passages
from shardwright.wire.transport.reactor import RequestLoop, may_run_in_reactor
from shardwright.wire.transport.reply_memory import SlowClientError
from shardwright.wire.transport.reservations import SERVED_CLIENT
from shardwright.wire.transport.stream import FrameStream
from shardwright.wire.transport.transport import Transport
from shardwright.wire.transport.unauthenticated_clients import Newcomers

_COUNTERS: Final = Struct("=128xQ64xQ")
"""``tcpi_bytes_received`` and ``tcpi_bytes_sent`` of ``struct tcp_info`` (linux/tcp.h), the second since Linux 4.19."""


class Traffic(NamedTuple):
    """Bytes received from clients, and sent to them."""

    received: int = 0
    sent: int = 0


def traffic_of(connected: socket.socket) -> Traffic:
    """Return the traffic of one connection; none on a UNIX socket, for which the kernel does not count."""
    if connected.family == socket.AF_UNIX:
        return Traffic()
    counters = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _COUNTERS.size)
    return Traffic(*_COUNTERS.unpack(counters.ljust(_COUNTERS.size, b"\0")))


def sum_of(parts: Iterable[Traffic]) -> Traffic:
    """Add up the traffic of several connections."""
    received, sent = map(sum, zip(Traffic(), *parts, strict=True))
    return Traffic(received, sent)


logger = get_logger("wire.server")

LOCAL_PEER: Final = "anonymous unix socket"
"""Name of a local client that has connected through a UNIX socket."""

_ACCEPT_ERRNOS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
_BROKEN_ERRNOS: Final = frozenset(
    {
        *(errno.ECONNABORTED, errno.EPERM, errno.EPROTO, errno.ENOPROTOOPT, errno.EOPNOTSUPP),
        *(errno.ENETDOWN, errno.ENETUNREACH, errno.ENONET, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ETIMEDOUT),
    }
)
"""Errors of a connection that broke before it was accepted, or that a firewall forbids, see accept(2)."""
_ACCEPT_PAUSE_SECONDS: Final = 0.1

_INTERRUPTION_SECONDS_MAX: Final = 1.0
"""Time for operations interrupted at shutdown to clean up."""


class Server:
    """Server of clients on listening sockets, until cancelled.

    Attributes:
        transport: the transport of its connections.
        protocol_errors: connections closed because of malformed input, such as a frame of an impossible length.
        handshakes_failed: connections closed because TLS was refused, missing, broken or too slow.
        tls_versions: connections by their version of TLS, without those that do not use it.
        passages: the daemon's passages for forwarded requests; None if it has none.
        newcomers: the clients that have not logged in; None if they need not.
    """

    def __init__(
        self,
        transport: Transport,
        handler: Handler,
        *,
        connections_max: int = CONNECTIONS_MAX,
        newcomers: Newcomers | None = None,
        handshakes_max: int | None = None,
    ) -> None:
        self.passages: Passages | None = None
        self.transport = transport
        self._unread_replies = transport.unread_replies
        self._handler = handler
        self.answers = Answers(handler, newcomers)
        self.newcomers = newcomers
        self.connections_max = connections_max
        self._watcher = DisconnectWatcher()
        self._accepting = trio.CancelScope()
        self._clients_gone = trio.Event()
        self._stopped = trio.Event()
        self.clients: set[ClientConnection] = set()
        self.connections_created = 0
        self.protocol_errors = 0
        self.handshakes_failed = 0
        self.tls_versions: Counter[str] = Counter()
        self._past_traffic = Traffic()
        self._refusals = RefusalLog()
        self._arrivals = Arrivals(transport, handshakes_max, connections_max)
        self.is_draining = False
        self.is_interrupting = False

    @property
    def connections_refused(self) -> int:
        """Number of connections refused because there were too many."""
        return self._refusals.refused

    def traffic(self) -> Traffic:
        """Return the traffic of all clients since the start, including handshakes."""
        return sum_of([self._past_traffic, *(traffic_of(client.stream.socket) for client in self.clients)])

    async def serve(
        self,
        listeners: Sequence[socket.socket],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accept and serve clients on all listeners, then close the listeners. Returns once `drain` has finished."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watcher.run)
                nursery.start_soon(self._refusals.run)
                if self.newcomers is not None:
                    nursery.start_soon(self.newcomers.run)
                task_status.started()
                with self._accepting:
                    async with trio.open_nursery() as acceptors:
                        for listener in listeners:
                            listener.setblocking(False)
                            acceptors.start_soon(self._accept, listener, nursery)
                _close_all(listeners)
                await self._stopped.wait()
                nursery.cancel_scope.cancel()
        finally:
            _close_all(listeners)

    async def drain(self, seconds: float) -> None:
        """Stop accepting, close idle connections, wait ``seconds`` for running operations, then interrupt the rest.

        Interrupted operations are answered with InterruptedAtShutdown.
        """
        self.is_draining = True
        self._accepting.cancel()
        for client in list(self.clients):
            if client.is_busy:
                client.is_finished = True
                continue
            if client.stream.is_sending:
                client.stream.when_sent(client.scope.cancel)
            else:
                client.scope.cancel()
        await self._wait_for_clients(seconds)
        self.is_interrupting = True
        for client in list(self.clients):
            client.scope.cancel()
        await self._wait_for_clients(_INTERRUPTION_SECONDS_MAX)
        self._stopped.set()

    async def _wait_for_clients(self, seconds: float) -> None:
        """Wait until all clients are gone, at most for ``seconds``."""
        with trio.move_on_after(seconds):
            if self.clients:
                await self._clients_gone.wait()

    async def _accept(self, listener: socket.socket, nursery: trio.Nursery) -> None:
        while True:
            await wait_readable(listener)
            try:
                accepted, address = listener.accept()
            except BlockingIOError:
                continue  # another worker process took it
            except OSError as error:
                if error.errno in _BROKEN_ERRNOS:
                    continue
                if error.errno not in _ACCEPT_ERRNOS:
                    raise
                logger.error("Could not accept a connection", error=str(error))
                await trio.sleep(_ACCEPT_PAUSE_SECONDS)  # descriptors become available when connections close
                continue
            peer = f"{address[0]}:{address[1]}" if accepted.family != socket.AF_UNIX else LOCAL_PEER
            if len(self.clients) >= self.connections_max:
                self._refusals.note(peer, len(self.clients))
                accepted.close()
                continue
            self.connections_created += 1
            if self._arrivals.needs_greeting(accepted):
                serve = partial(self._greet, accepted, peer, self._arrivals.add(accepted))
            else:
                serve = partial(self._serve_accepted, accepted, peer)
            nursery.start_soon(self._serve_alone, accepted, peer, serve)

    async def _serve_alone(self, accepted: socket.socket, peer: str, serve: Callable[[], Awaitable[None]]) -> None:
        """Serve one connection; an unexpected exception ends only this connection."""
        try:
            await serve()
        except Exception:
            logger.exception("Internal error on a connection", remote=peer)
            accepted.close()

    async def _serve_accepted(self, accepted: socket.socket, peer: str) -> None:
        await self._serve_client(ClientConnection(FrameStream(accepted), peer, self._unread_replies))

    async def _greet(self, accepted: socket.socket, peer: str, scope: trio.CancelScope) -> None:
        """Shake hands with a client, and serve it."""
        try:
            client = await self._arrivals.greet(accepted, peer, scope)
        except OSError as error:
            self.handshakes_failed += 1
            logger.info("Closing a connection that could not be secured", remote=peer, error=str(error))
            return
        if client is None:
            return
        if client.tls_version is not None:
            self.tls_versions[client.tls_version] += 1
        if self.is_draining:
            client.stream.close()
        elif len(self.clients) >= self.connections_max:
            self._refusals.note(peer, len(self.clients))
            client.stream.close()
        else:
            await self._serve_client(client)

    async def _serve_client(self, client: ClientConnection) -> None:
        with ExitStack() as leaving:  # the stack runs all callbacks, the last one first, even if one of them fails
            leaving.callback(self._note_gone, client)
            leaving.callback(self._handler.connection_closed, client)
            if self.newcomers is not None:
                leaving.callback(self.newcomers.remove, client)
            leaving.callback(self.clients.discard, client)
            leaving.callback(self._unread_replies.reservations.release, client)
            leaving.callback(client.stream.close)
            leaving.callback(self._unwatch, client)
            if self.passages is not None:
                client.lane = lane = ExpressLane(client, self.passages)
                leaving.callback(lane.close)
            self.clients.add(client)
            if self.newcomers is not None:
                self.newcomers.add(client)
            logger.info(
                "Connection accepted", connection_id=client.id, remote=client.peer, connections=len(self.clients)
            )
            self._handler.connection_opened(client)
            SERVED_CLIENT.set(client)
            self._watcher.watch(client.stream.socket, client.on_disconnect)
            await self._serve_requests(client)

    def _unwatch(self, client: ClientConnection) -> None:
        self._watcher.unwatch(client.stream.socket)
        self._past_traffic = sum_of([self._past_traffic, traffic_of(client.stream.socket)])

    def _note_gone(self, client: ClientConnection) -> None:
        logger.info("Connection ended", connection_id=client.id, remote=client.peer, connections=len(self.clients))
        if self.is_draining and not self.clients:
            self._clients_gone.set()

    async def _serve_requests(self, client: ClientConnection) -> None:
        try:
            with client.scope:
                client.loop = RequestLoop(
                    partial(self._serve_request, client), partial(self._answer_interrupted_operation, client)
                )
                await client.loop.run()
            if self.is_interrupting and client.unanswered is not None:
                # As far as possible without waiting.
                client.stream.send_now(self.answers.at_shutdown(client.unanswered))
        except RemoteProtocolError as error:
            self.protocol_errors += 1
            logger.warning(
                "Closing a connection that broke the protocol",
                connection_id=client.id,
                remote=client.peer,
                error=str(error),
            )
        except SlowClientError as error:
            logger.warning(
                "Closing the connection of a client that does not read",
                connection_id=client.id,
                remote=client.peer,
                error=str(error),
            )
        except OSError as error:
            logger.debug("A connection broke", connection_id=client.id, error=str(error))

    @may_run_in_reactor
    async def _serve_request(self, client: ClientConnection) -> bool:
        """Wait for a request and serve it; return whether another one may follow."""
        stream = client.stream
        if client.unsent is not None:
            unsent, client.unsent = client.unsent, None
            await self._unread_replies.send(stream, unsent, client)
            return self._may_continue(client)
        frame = await (stream.receive() if client.lane is None else client.lane.receive())
        if frame is None:
            return False
        client.is_busy = True
        reply = await self.answers.to_frame(client, frame)
        client.unanswered = None
        if reply is not None:
            is_last = self.is_draining or client.is_finished
            rest = stream.send_now(reply) if is_last else stream.post(reply)
        else:
            rest, stream.backlog = stream.backlog, None
        if rest is not None:
            if client.interruption is not None:
                # The interruption came too late. Here it would cancel this step in the middle of the reply.
                client.interruption, client.unsent = None, rest
                return True
            await self._unread_replies.send(stream, rest, client)
        elif client.reserved_bytes:
            self._unread_replies.reservations.release(client)
        client.interruption = None
        return self._may_continue(client)

    def _may_continue(self, client: ClientConnection) -> bool:
        """Record that a request has been served; return whether another one may follow."""
        client.is_busy = client.is_interruptible = False
        return not (self.is_draining or client.is_finished)

    async def _answer_interrupted_operation(self, client: ClientConnection) -> bool:
        """Answer a client whose operation was interrupted; return whether another request may follow."""
        request, error = client.unanswered, client.interruption
        client.unanswered = client.interruption = None
        if error is None:
            return False  # the operation had been answered, perhaps in part
        if request is not None:  # else the client does not wait for an answer
            await client.send(self.answers.frame_error(request.message.request_id, error))
        return self._may_continue(client)


def _close_all(listeners: Sequence[socket.socket]) -> None:
    for listener in listeners:
        if listener.fileno() >= 0:
            trio.lowlevel.notify_closing(listener)
            listener.close()
