"""The reply to each frame of a client: plain, compressed, with a checksum, or a legacy hello.

Messages that are not commands, and commands that end with an error, are answered here without the handler.

Long messages are compressed in threads, because the event loop would block all other clients. The compressors release
the interpreter's lock. A short message is finished before a thread would have started. A connection serves one request
at a time, so its frames keep their order.
"""

from typing import TYPE_CHECKING, Final, Protocol

import bson
import trio

from shardwright.wire import compression, legacy
from shardwright.wire.compression import Compressor
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import (
    RETRYABLE_WRITE_ERROR,
    TRANSIENT_TRANSACTION_ERROR,
    CommandError,
    MalformedRequestError,
    RemoteProtocolError,
)
from shardwright.wire.frames import HEADER_BYTES, OP_COMPRESSED, OP_GET_MORE, OP_MSG, OP_QUERY, Header, next_request_id
from shardwright.wire.limits import MESSAGE_BYTES_MAX
from shardwright.wire.logger import get_logger
from shardwright.wire.message import CHECKSUM_PRESENT, MORE_TO_COME, OpMsg, error_reply, flags_of, op_msg, with_checksum
from shardwright.wire.rawbson import InvalidBSONError, append, encode_elements
from shardwright.wire.request import Request
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.reactor import in_own_task, may_run_in_reactor
from shardwright.wire.transport.unauthenticated_clients import Newcomers

if TYPE_CHECKING:
    from collections.abc import Callable


class Handler(Protocol):
    """The commands of a daemon."""

    @may_run_in_reactor
    async def handle(self, client: ClientConnection, request: Request) -> bytes | None:
        """Answer one request with the frame of the reply; None if there is nothing (more) to send.

        Called in the reactor, if it is running: code that waits for anything but sockets must call `in_own_task` first.

        Raises:
            CommandError: converted to the ``ok: 0`` reply.
        """

    def connection_opened(self, client: ClientConnection) -> None:
        """Handle the connection of a client."""

    def connection_closed(self, client: ClientConnection) -> None:
        """Release the resources of a disconnected client."""


logger = get_logger("wire.server")

_ENDINGS_OF_TRANSACTIONS: Final = frozenset({"abortTransaction", "commitTransaction"})

# Nearly every message is recognised by comparing these bytes.
_OP_MSG: Final = OP_MSG.to_bytes(4, "little")
_OPCODE_AT: Final = 12


class Answers:
    """Builder of a server's replies.

    ``frame_error`` builds the reply for an error, given the id of the request. A daemon that adds fields to its replies
    replaces it. ``newcomers`` are the clients that have not logged in; None if they need not.
    """

    def __init__(self, handler: Handler, newcomers: Newcomers | None) -> None:
        self.frame_error: Callable[[int, CommandError], bytes] = error_reply
        self._handler = handler
        self._newcomers = newcomers

    @may_run_in_reactor
    async def to_frame(self, client: ClientConnection, frame: bytes) -> bytes | None:
        """Answer a frame with the frame of the reply; None if there is nothing (more) to send.

        Raises:
            RemoteProtocolError: the client has broken the protocol.
            OSError: its connection broke.
        """
        if frame.startswith(_OP_MSG, _OPCODE_AT):
            return await self._to_op_msg(client, frame, is_plain=True)
        return await self._to_other(client, frame)

    def at_shutdown(self, request: Request) -> bytes:
        """Build the reply to a request that shutdown has interrupted."""
        error = CommandError(
            ErrorCode.InterruptedAtShutdown, "interrupted at shutdown", labels=_labels_at_shutdown(request)
        )
        return self.frame_error(request.message.request_id, error)

    @may_run_in_reactor
    async def _to_other(self, client: ClientConnection, frame: bytes) -> bytes | None:
        """Answer a frame that is compressed, or was before this call, or begins with a legacy hello."""
        opcode = frame[12] | frame[13] << 8
        if opcode == OP_MSG:
            return await self._to_op_msg(client, frame)
        if opcode == OP_COMPRESSED:
            inner, compressor = await decompress(frame, client.stream.message_bytes_max)
            if compressor.name.lower() not in client.compressors:
                raise RemoteProtocolError(f"a message compressed with {compressor.name}, which was not negotiated")
            reply = await self._to_other(client, inner)
            return None if reply is None else await compress(reply, compressor)
        if opcode == OP_QUERY:
            return await self._to_op_query(client, frame)
        if opcode == OP_GET_MORE:
            return legacy.get_more_reply(Header(frame).request_id)
        raise RemoteProtocolError(f"message with unsupported opcode {Header(frame).opcode}")

    @may_run_in_reactor
    async def _to_op_msg(self, client: ClientConnection, frame: bytes, *, is_plain: bool = False) -> bytes | None:
        """Answer an OP_MSG. It ``is_plain`` if neither it nor its reply is inside another message."""
        try:
            message = OpMsg(frame)
        except MalformedRequestError as error:
            return self._refused(frame, error)
        client.is_answered_verbatim = is_plain and not message.flags & CHECKSUM_PRESENT
        command = None
        try:
            request = Request(message)
            command = request.name
            client.unanswered = None if message.flags & MORE_TO_COME else request
            if client.is_newcomer and self._newcomers is not None:
                self._newcomers.heard(client, request)
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
    async def _to_op_query(self, client: ClientConnection, frame: bytes) -> bytes | None:
        """Answer a driver that does not know yet that OP_MSG is supported, as if it had sent one."""
        query = legacy.parse_query(frame)
        if not legacy.is_permitted(query):
            return legacy.unsupported_reply(query)
        db = query.full_collection_name.partition(".")[0]
        try:
            body = append(query.query, encode_elements({"$db": db}))
        except (InvalidBSONError, bson.errors.InvalidStringData) as error:
            raise RemoteProtocolError(f"OP_QUERY: {error}") from error
        reply = await self._to_op_msg(client, op_msg(body, request_id=next_request_id()))
        return None if reply is None else legacy.op_reply(query.request_id, OpMsg(reply).body)

    def _refused(self, frame: bytes, malformed: MalformedRequestError) -> bytes | None:
        """Answer an OP_MSG that is not a command; None if its sender expects no reply."""
        flags = flags_of(frame)
        if flags & MORE_TO_COME:
            return None
        reply = self.frame_error(Header(frame).request_id, malformed.error)
        return with_checksum(reply) if flags & CHECKSUM_PRESENT else reply


def _labels_at_shutdown(request: Request) -> tuple[str, ...]:
    """Return the labels that allow a driver to retry: a retryable write, the end of a transaction, or a transaction."""
    if b"txnNumber" not in request.fields:
        return ()
    if b"autocommit" in request.fields and request.name not in _ENDINGS_OF_TRANSACTIONS:
        return (TRANSIENT_TRANSACTION_ERROR,)
    return (RETRYABLE_WRITE_ERROR,)


LONG_MESSAGE_BYTES: Final = 1 << 18
"""Uncompressed size from which a thread is used; zlib takes some milliseconds for it."""

_THREADS_MAX: Final = 2
"""Most concurrent threads. Requests that wait hold a reply, but neither a connection to a shard nor the event loop."""

_threads = trio.CapacityLimiter(_THREADS_MAX)


@may_run_in_reactor
async def compress(frame: bytes, compressor: Compressor) -> bytes:
    """Compress a frame, see `wire.compression.compress`."""
    if len(frame) < LONG_MESSAGE_BYTES:
        return compression.compress(frame, compressor)
    await in_own_task()
    return await trio.to_thread.run_sync(compression.compress, frame, compressor, limiter=_threads)


@may_run_in_reactor
async def decompress(frame: bytes, bytes_max: int = MESSAGE_BYTES_MAX) -> tuple[bytes, Compressor]:
    """Decompress a frame of at most ``bytes_max``, see `wire.compression.decompress`."""
    announced = compression.announced_bytes(frame)
    if announced + HEADER_BYTES > bytes_max:
        raise RemoteProtocolError(f"a compressed message of {announced} bytes, more than a message may have")
    if announced < LONG_MESSAGE_BYTES:
        return compression.decompress(frame)
    await in_own_task()
    return await trio.to_thread.run_sync(compression.decompress, frame, limiter=_threads)
