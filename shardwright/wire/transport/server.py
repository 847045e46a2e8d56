"""The server side: accepts connections, reads one request at a time on each, and lets a handler answer it.

This has what all daemons share: framing errors, compression, checksums, the legacy hello, the connection limit,
detection of disconnected clients, and orderly shutdown. The handler implements the commands.
"""

import errno
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

import bson
import trio
from trio.lowlevel import wait_readable

from shardwright.wire import legacy
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import (
    RETRYABLE_WRITE_ERROR,
    TRANSIENT_TRANSACTION_ERROR,
    CommandError,
    MalformedRequestError,
    RemoteProtocolError,
)
from shardwright.wire.frames import OP_COMPRESSED, OP_MSG, OP_QUERY, Header, next_request_id
from shardwright.wire.limits import CONNECTIONS_MAX
from shardwright.wire.logger import get_logger
from shardwright.wire.message import CHECKSUM_PRESENT, MORE_TO_COME, OpMsg, error_reply, flags_of, op_msg, with_checksum
from shardwright.wire.rawbson import InvalidBSONError, append, encode_elements
from shardwright.wire.request import Request
from shardwright.wire.transport import packing
from shardwright.wire.transport.arrivals import greet, needs_greeting
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.disconnects import DisconnectWatcher
from shardwright.wire.transport.newcomers import Newcomers
from shardwright.wire.transport.refusals import RefusalLog
from shardwright.wire.transport.request_loop import RequestLoop, may_run_in_reactor
from shardwright.wire.transport.reservations import SERVED_CLIENT
from shardwright.wire.transport.stream import FrameStream
from shardwright.wire.transport.unread import UNREAD_REPLIES, SlowClientError

logger = get_logger("wire.server")

LOCAL_PEER: Final = "anonymous unix socket"
"""The name of a client of this machine that has connected through a UNIX socket."""

_ACCEPT_ERRNOS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
_ACCEPT_PAUSE_SECONDS: Final = 0.1
_ENDINGS_OF_TRANSACTIONS: Final = frozenset({"abortTransaction", "commitTransaction"})

_INTERRUPTION_SECONDS_MAX: Final = 1.0
"""How long operations interrupted at shutdown have to clean up."""

# Nearly every message is recognised by comparing these bytes.
_OP_MSG: Final = OP_MSG.to_bytes(4, "little")
_OPCODE_AT: Final = 12


class Handler(Protocol):
    """What a daemon does for its clients."""

    @may_run_in_reactor
    async def handle(self, client: ClientConnection, request: Request) -> bytes | None:
        """Answer one request with the frame of the reply, or None if there is nothing (more) to send.

        Called in the reactor, if it is running: code that waits for anything but sockets must call `in_own_task` first.

        Raises:
            CommandError: converted to the ``ok: 0`` reply.
        """

    def connection_opened(self, client: ClientConnection) -> None:
        """A client has connected."""

    def connection_closed(self, client: ClientConnection) -> None:
        """A client has disconnected; release its resources."""


class Server:
    """Serves clients on listening sockets until cancelled.

    Attributes:
        protocol_errors: connections closed because of malformed input, such as a frame of an impossible length.
        handshakes_failed: connections closed because TLS was refused, missing, broken or too slow.
        frame_error: makes the reply with an error that the handler did not answer, given the id of the request; a
            daemon that adds fields to its replies replaces it.
        newcomers: the clients that have not logged in; None if they need not.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        connections_max: int = CONNECTIONS_MAX,
        newcomers: Newcomers | None = None,
    ) -> None:
        self._handler = handler
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
        self.frame_error: Callable[[int, CommandError], bytes] = error_reply
        self._refusals = RefusalLog()
        self._arriving = 0
        self.is_draining = False
        self.is_interrupting = False

    @property
    def connections_refused(self) -> int:
        """How many connections were refused because there were too many."""
        return self._refusals.refused

    async def serve(
        self,
        listeners: Sequence[socket.socket],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accept and serve clients on all listeners, and close these at the end. Returns once `drain` has finished."""
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
                if error.errno not in _ACCEPT_ERRNOS:
                    raise
                logger.error("Could not accept a connection", error=str(error))
                await trio.sleep(_ACCEPT_PAUSE_SECONDS)  # descriptors become available when connections close
                continue
            peer = f"{address[0]}:{address[1]}" if accepted.family != socket.AF_UNIX else LOCAL_PEER
            if len(self.clients) + self._arriving >= self.connections_max:
                self._refusals.note(peer, len(self.clients) + self._arriving)
                accepted.close()
                continue
            self.connections_created += 1
            if needs_greeting(accepted):
                self._arriving += 1
                nursery.start_soon(self._greet, accepted, peer)
            else:
                nursery.start_soon(self._serve_client, ClientConnection(FrameStream(accepted), peer))

    async def _greet(self, accepted: socket.socket, peer: str) -> None:
        """Shake hands with a client, and serve it."""
        try:
            client = await greet(accepted, peer)
        except OSError as error:
            self.handshakes_failed += 1
            logger.info("Closing a connection that could not be secured", remote=peer, error=str(error))
            return
        finally:
            self._arriving -= 1
        if client is None:
            return
        if self.is_draining:
            client.stream.close()
        else:
            await self._serve_client(client)

    async def _serve_client(self, client: ClientConnection) -> None:
        self.clients.add(client)
        if self.newcomers is not None:
            self.newcomers.add(client)
        self._handler.connection_opened(client)
        SERVED_CLIENT.set(client)
        self._watcher.watch(client.stream.socket, client.on_disconnect)
        try:
            with client.scope:
                client.loop = RequestLoop(
                    partial(self._serve_request, client), partial(self._answer_interrupted_operation, client)
                )
                await client.loop.run()
            if self.is_interrupting:
                self._answer_interrupted(client)
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
        finally:
            self._watcher.unwatch(client.stream.socket)
            client.stream.close()
            UNREAD_REPLIES.reservations.release(client)
            self.clients.discard(client)
            if self.newcomers is not None:
                self.newcomers.remove(client)
            self._handler.connection_closed(client)
            if self.is_draining and not self.clients:
                self._clients_gone.set()

    @may_run_in_reactor
    async def _serve_request(self, client: ClientConnection) -> bool:
        """Wait for a request and serve it; returns whether another one may follow."""
        stream = client.stream
        frame = await stream.receive()
        if frame is None:
            return False
        client.is_busy = True
        if frame.startswith(_OP_MSG, _OPCODE_AT):
            try:
                message = OpMsg(frame)
            except MalformedRequestError as error:
                reply = self._refused(frame, error)
            else:
                client.is_answered_verbatim = not message.flags & CHECKSUM_PRESENT
                reply = await self._answer_op_msg(client, message)
        else:
            client.is_answered_verbatim = False
            reply = await self._answer(client, frame)
        client.unanswered = None
        if reply is not None:
            is_last = self.is_draining or client.is_finished
            rest = stream.send_now(reply) if is_last else stream.post(reply)
        else:
            rest, stream.backlog = stream.backlog, None
        if rest is not None:
            await UNREAD_REPLIES.send(stream, rest, client)
        elif client.reserved_bytes:
            UNREAD_REPLIES.reservations.release(client)
        client.is_busy = client.is_interruptible = False
        return not (self.is_draining or client.is_finished)

    async def _answer_interrupted_operation(self, client: ClientConnection) -> bool:
        """Answer a client whose operation was interrupted; returns whether another request may follow."""
        request, error = client.unanswered, client.interruption
        client.unanswered = client.interruption = None
        if request is None or error is None:
            return False  # it had been answered, perhaps in part; or nobody waits for an answer
        await client.send(self.frame_error(request.message.request_id, error))
        client.is_busy = client.is_interruptible = False
        return not (self.is_draining or client.is_finished)

    @may_run_in_reactor
    async def _answer(self, client: ClientConnection, frame: bytes) -> bytes | None:
        opcode = frame[12] | frame[13] << 8
        if opcode == OP_MSG:
            try:
                message = OpMsg(frame)
            except MalformedRequestError as error:
                return self._refused(frame, error)
            return await self._answer_op_msg(client, message)
        if opcode == OP_COMPRESSED:
            inner, compressor = await packing.decompress(frame, client.stream.message_bytes_max)
            if compressor.name.lower() not in client.compressors:
                raise RemoteProtocolError(f"a message compressed with {compressor.name}, which was not negotiated")
            reply = await self._answer(client, inner)
            return None if reply is None else await packing.compress(reply, compressor)
        if opcode == OP_QUERY:
            return await self._answer_op_query(client, frame)
        raise RemoteProtocolError(f"message with unsupported opcode {Header(frame).opcode}")

    @may_run_in_reactor
    async def _answer_op_msg(self, client: ClientConnection, message: OpMsg) -> bytes | None:
        command = None
        try:
            request = Request(message)
            command = request.name
            client.unanswered = None if message.flags & MORE_TO_COME else request
            if client.is_newcomer and self.newcomers is not None:
                self.newcomers.heard(client, request)
            reply = await self._handler.handle(client, request)
        except CommandError as error:
            reply = self.frame_error(message.request_id, error)
        except MalformedRequestError as malformed:
            reply = self.frame_error(message.request_id, malformed.error)
        except (RemoteProtocolError, OSError):
            raise
        except Exception as error:
            logger.exception(
                "Internal error in a command",
                connection_id=client.id,
                remote=client.peer,
                command=command,
            )
            internal = CommandError(ErrorCode.InternalError, f"{type(error).__name__}: {error}")
            client.is_finished = True
            reply = self.frame_error(message.request_id, internal)
        if message.flags & MORE_TO_COME:
            return None
        if message.flags & CHECKSUM_PRESENT and reply is not None and not reply[16] & CHECKSUM_PRESENT:
            return with_checksum(reply)
        return reply

    @may_run_in_reactor
    async def _answer_op_query(self, client: ClientConnection, frame: bytes) -> bytes | None:
        """Answer the hello that drivers send before they know that OP_MSG is supported, as if it were an OP_MSG."""
        query = legacy.parse_query(frame)
        if not legacy.is_hello(query):
            return legacy.unsupported_reply(query)
        db = query.full_collection_name.partition(".")[0]
        try:
            body = append(query.query, encode_elements({"$db": db}))
        except (InvalidBSONError, bson.errors.InvalidStringData) as error:
            raise RemoteProtocolError(f"OP_QUERY: {error}") from error
        message = OpMsg(op_msg(body, request_id=next_request_id()))
        reply = await self._answer_op_msg(client, message)
        return None if reply is None else legacy.op_reply(query.request_id, OpMsg(reply).body)

    def _refused(self, frame: bytes, malformed: MalformedRequestError) -> bytes | None:
        """The answer to an OP_MSG that is not a command; None if its sender expects none."""
        flags = flags_of(frame)
        if flags & MORE_TO_COME:
            return None
        reply = self.frame_error(Header(frame).request_id, malformed.error)
        return with_checksum(reply) if flags & CHECKSUM_PRESENT else reply

    def _answer_interrupted(self, client: ClientConnection) -> None:
        """Answer a client whose operation was interrupted at shutdown, as far as possible without waiting."""
        request = client.unanswered
        if request is None:
            return
        labels = _labels_at_shutdown(request)
        error = CommandError(ErrorCode.InterruptedAtShutdown, "interrupted at shutdown", labels=labels)
        client.stream.send_now(self.frame_error(request.message.request_id, error))


def _labels_at_shutdown(request: Request) -> tuple[str, ...]:
    """What the driver may send again: a retryable write or the end of a transaction, or the whole of a transaction."""
    if b"txnNumber" not in request.fields:
        return ()
    if b"autocommit" in request.fields and request.name not in _ENDINGS_OF_TRANSACTIONS:
        return (TRANSIENT_TRANSACTION_ERROR,)
    return (RETRYABLE_WRITE_ERROR,)


def _close_all(listeners: Sequence[socket.socket]) -> None:
    for listener in listeners:
        if listener.fileno() >= 0:
            trio.lowlevel.notify_closing(listener)
            listener.close()
