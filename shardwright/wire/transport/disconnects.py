"""Peers that disconnect while their socket is not being read, and the requests abandoned because of it.

A task that works on a request does not read its client's socket, so it would not notice a disconnect. One epoll set
watches all these sockets for the hang-up event only. The set itself is a file descriptor that one task waits for. So
watching costs nothing per operation, only when a connection is opened or closed.

A cancelled request leaves an abandoned connection, which is only half-closed. A mongod then ends the operation as if
its client had disconnected, but it still sends the reply. So a cursor that was opened in that instant is identified and
killed, rather than left to time out after ten minutes.
"""

import select
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import trio
from bson.int64 import Int64
from trio.lowlevel import wait_readable

from shardwright.wire.cursor_batch import RawBatch
from shardwright.wire.errors import BackendError, CommandError, RemoteProtocolError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import InvalidBSONError
from shardwright.wire.transport.stream import FrameStream

logger = get_logger("wire.disconnects")
abandoned_logger = get_logger("wire.abandoned")

_HANG_UP: Final = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR | select.EPOLLET


class DisconnectWatcher:
    """Watcher that calls back once when the peer of a socket has closed or half-closed its side."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}

    def watch(self, watched: socket.socket, on_disconnect: Callable[[], None]) -> None:
        """Start watching; ``on_disconnect`` must not block. After `run` has ended there are no callbacks."""
        if self._epoll.closed:
            return
        descriptor = watched.fileno()
        self._callbacks[descriptor] = on_disconnect
        self._epoll.register(descriptor, _HANG_UP)

    def unwatch(self, watched: socket.socket) -> None:
        """Stop watching; must be called before the socket is closed."""
        descriptor = watched.fileno()
        if self._callbacks.pop(descriptor, None) is not None and not self._epoll.closed:
            self._epoll.unregister(descriptor)

    async def run(self) -> None:
        """Watch until cancelled."""
        try:
            while True:
                await wait_readable(self._epoll.fileno())
                for descriptor, _ in self._epoll.poll(0):
                    on_disconnect = self._callbacks.get(descriptor)
                    if on_disconnect is not None:
                        try:
                            on_disconnect()
                        except Exception:
                            logger.exception("Internal error after a disconnect")
        finally:
            self._epoll.close()


_REPLY_SECONDS_MAX: Final = 60.0
"""Time limit for the reply: operations that a mongod does not end when the client disconnects may take any time."""

_KILL_SECONDS_MAX: Final = 60.0

RunCommand = Callable[[str, Mapping[str, Any]], Awaitable[object]]
"""Runs a command on a database of the host."""


class AbandonedRequests:
    """Receiver of the replies to abandoned requests. Without `run`, their connections are closed at once."""

    def __init__(self) -> None:
        self._to_end, self._ending = trio.open_memory_channel[tuple[FrameStream, RunCommand]](float("inf"))
        self._is_running = False

    async def run(self) -> None:
        """Receive replies until cancelled."""
        self._is_running = True
        try:
            async with trio.open_nursery() as nursery:
                async for stream, run_command in self._ending:
                    nursery.start_soon(_end, stream, run_command)
        finally:
            self._is_running = False
            while self._ending.statistics().current_buffer_used:
                self._ending.receive_nowait()[0].close()

    def end(self, stream: FrameStream, run_command: RunCommand) -> None:
        """End a request that was sent on ``stream``, before any part of its reply was read, and close the stream.

        ``run_command`` runs a command on another connection to the same host.
        """
        if self._is_running and stream.half_close():
            self._to_end.send_nowait((stream, run_command))
        else:
            stream.close()


async def _end(stream: FrameStream, run_command: RunCommand) -> None:
    """Receive the reply, and kill the cursor that it names; if that fails, the cursor times out there."""
    try:
        reply = None
        with trio.move_on_after(_REPLY_SECONDS_MAX):
            reply = await stream.receive()
        if reply is not None:
            await _kill_cursor_of(reply, run_command)
    except (OSError, RemoteProtocolError, InvalidBSONError) as error:
        abandoned_logger.debug("Could not read the reply to an abandoned request", error=str(error))
    finally:
        stream.close()


async def _kill_cursor_of(reply: bytes, run_command: RunCommand) -> None:
    try:
        batch = RawBatch(reply)
    except CommandError:
        return  # it did not open a cursor
    if not batch.cursor_id:
        return
    db, _, collection = batch.namespace.partition(".")
    try:
        with trio.fail_after(_KILL_SECONDS_MAX):
            await run_command(db, {"killCursors": collection, "cursors": [Int64(batch.cursor_id)]})
    except (BackendError, CommandError, trio.TooSlowError) as error:
        reason = str(error) or "timeout"
        abandoned_logger.info("Could not kill a cursor", namespace=batch.namespace, error=reason)
