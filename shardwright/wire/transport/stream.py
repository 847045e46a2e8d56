"""Whole frames over a non-blocking socket.

A frame is written with one call and, if possible, read with one. A wait costs an iteration of the event loop, which is
most of the cost of a hop. Frames sent by request loops are written together (`wire.transport.sockets`). A read
is attempted before waiting only within a frame. Between frames, where a daemon waits for a client's next request or a
backend's reply, the attempt would nearly always fail and cost more than it saves.

The kernel breaks the connection of a silent peer, see `TcpLimits`.
"""

import select
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import trio
from trio.lowlevel import wait_writable

from shardwright.wire.errors import RemoteProtocolError
from shardwright.wire.frames import HEADER_BYTES, FrameReader, frame_length, is_whole_frame
from shardwright.wire.transport.reactor import in_own_task, may_run_in_reactor
from shardwright.wire.transport.reply_memory import Relay
from shardwright.wire.transport.reservations import LONG_REPLY_BYTES
from shardwright.wire.transport.sockets import ReactorSocket, TlsSocket


@dataclass(frozen=True)
class TcpLimits:
    """The kernel's timeouts for a silent peer, in seconds, see tcp(7).

    Attributes:
        idle: a connection without traffic for this long is probed.
        interval: the time between two probes.
        unanswered: the connection breaks if the peer has acknowledged neither a probe nor data for this long, or has
            had no room for more data.
    """

    idle: int
    interval: int
    unanswered: int

    def apply(self, connected: socket.socket) -> None:
        """Set the timeouts on a TCP socket."""
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, self.idle)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, self.interval)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, -(-self.unanswered // self.interval))
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, self.unanswered * 1000)


SERVER_LIMITS: Final = TcpLimits(idle=10, interval=5, unanswered=20)
"""Timeouts for connections to servers, which always read."""

CLIENT_LIMITS: Final = TcpLimits(idle=30, interval=10, unanswered=120)
"""Timeouts for connections from clients, whose application may be busy and not read its replies for some time."""


READ_BYTES: Final = 65_536
"""Read size between two frames."""

_READ_BYTES_MAX: Final = 1 << 20
_RELAY_BYTES: Final = 1 << 18
_LOCAL_SEND_BUFFER_BYTES: Final = 1 << 20
"""Send buffer of UNIX sockets, as far as ``net.core.wmem_max`` allows. Unlike a TCP buffer, it does not grow."""
_READS_WITHOUT_WAIT_MAX: Final = 16
"""Limit that keeps a peer with an endless supply of data from starving the other tasks."""


class FrameStream:
    """Sender and receiver of frames on a connected socket, which it owns.

    One task may receive and one may send at a time. Methods raise OSError if the connection broke.

    Args:
        received: bytes already read from the socket.
        limits: timeouts of the kernel for a silent peer; by default the limits for clients.

    Attributes:
        backlog: the rest of a reply forwarded to this stream, to be written before anything else.
        make_room: called before the rest of a long frame is received, with the number of missing bytes.
    """

    __slots__ = (
        "_given_back",
        "_reader",
        "backlog",
        "io",
        "is_closed",
        "make_room",
    )

    def __init__(
        self, connected: socket.socket | TlsSocket, *, received: bytes = b"", limits: TcpLimits = CLIENT_LIMITS
    ) -> None:
        self.io = ReactorSocket(connected)
        plain = self.io.plain
        plain.setblocking(False)
        if plain.family == socket.AF_UNIX:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LOCAL_SEND_BUFFER_BYTES)
        else:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            limits.apply(plain)
        self._reader = FrameReader()
        if received:
            self._reader.feed(received)
        self.backlog: memoryview | None = None
        self._given_back: bytes | OSError | None = None
        self.is_closed = False
        self.make_room: Callable[[int], Awaitable[None]] | None = None

    @property
    def socket(self) -> socket.socket:
        """The socket, for code that watches it; only this object may read from and write to it."""
        return self.io.plain

    @property
    def has_peer_left(self) -> bool:
        """Whether the peer has closed its side by now. A system call checks it, before any notification."""
        if self.is_closed:
            return True
        poller = select.poll()
        poller.register(self.io.plain, select.POLLRDHUP)
        return bool(poller.poll(0))

    @property
    def is_between_frames(self) -> bool:
        """Whether no part of another frame has been received."""
        return self._given_back is None and not self._reader.available

    @property
    def is_quiet(self) -> bool:
        """Whether there are no unread bytes, and no unsent ones."""
        return not (
            self.is_closed
            or self.io.has_news
            or self.io.unsent
            or self._given_back is not None
            or self._reader.available
        )

    def give_back(self, received: bytes | OSError) -> None:
        """Return bytes that were read from the socket between two frames, or its error, to the next call that receives.

        Code that recognises some frames can thus leave all others to the usual calls.
        """
        self._given_back = received

    @property
    def message_bytes_max(self) -> int:
        """The longest frame that may be received."""
        return self._reader.bytes_max

    def limit_messages(self, bytes_max: int) -> None:
        """Refuse longer frames from now on, before they have arrived."""
        self._reader.bytes_max = bytes_max

    @may_run_in_reactor
    async def receive(self) -> bytes | None:
        """Receive the next frame; None if the peer has closed the connection between two frames.

        Raises RemoteProtocolError for invalid framing, or if the peer closed in the middle of a frame.
        """
        reader = self._reader
        if not reader.available:
            # The usual case: one wait, one read, one whole frame.
            if self._given_back is not None:
                data = self._take_given_back()
            else:
                await self.io.wait_readable()
                try:
                    data = self.io.connected.recv(READ_BYTES)
                except BlockingIOError:
                    return await self._receive_rest()
            if not data:
                return None
            if is_whole_frame(data) and len(data) <= reader.bytes_max:
                self.io.has_news |= len(data) == READ_BYTES
                return data
            reader.feed(data)
        return await self._receive_rest()

    async def wait_begun(self) -> None:
        """Wait until the next frame begins to arrive, or the peer has closed; for code that runs in a trio task.

        After a cancellation, nothing has been received, and it can be called again.
        """
        if self._given_back is None:
            await self.io.wait_readable()

    @may_run_in_reactor
    async def receive_beginning(self) -> bytes | None:
        """Receive the next frame; of a long one, only the bytes received first. The rest is left to `relay`.

        A result that is not a whole frame (`is_whole_frame`) is such a beginning, and contains at least the header.
        Raises as `receive`.
        """
        if not self._reader.available:
            while self._given_back is None:
                await self.io.wait_readable()
                try:
                    data = self.io.connected.recv(READ_BYTES)
                except BlockingIOError:
                    continue  # the notification was for bytes already read with the last frame
                break
            else:
                data = self._take_given_back()
            if not data:
                return None
            if is_whole_frame(data) or (len(data) >= HEADER_BYTES and frame_length(data) > _RELAY_BYTES):
                return data
            self._reader.feed(data)
        return await self._receive_rest()

    def _take_given_back(self) -> bytes:
        received, self._given_back = self._given_back, None
        if isinstance(received, OSError):
            raise received
        assert received is not None
        return received

    @may_run_in_reactor
    async def relay(self, beginning: bytes, relay: Relay) -> bytes | None:
        """Forward a long frame while it is still arriving, in pieces that are not copied again.

        ``beginning`` is the result of `receive_beginning`. If ``relay`` declines it, the whole frame is returned.

        Raises:
            RemoteProtocolError: the peer closed in the middle of the frame.
            OSError: either connection broke.
        """
        begun = relay.begin(beginning)
        if begun is None:
            self._reader.feed(beginning)
            return await self._receive_rest()
        relay.has_begun = True
        changed, kept_bytes = begun
        missing = frame_length(beginning) - len(beginning) - kept_bytes
        buffer = memoryview(bytearray(_RELAY_BYTES))
        try:
            unsent = await relay.send(changed)
            while missing and unsent is None:
                received = await self._receive_into(buffer[: min(missing, _RELAY_BYTES)])
                missing -= received
                unsent = await relay.send(buffer[:received])
            if unsent is None:
                if kept_bytes:
                    relay.leave(await relay.send(relay.end(bytes(await self._receive_exactly(kept_bytes)))))
            else:
                with relay.room_for(len(unsent) + missing + kept_bytes):
                    rest = await self._receive_exactly(missing)
                    end = relay.end(bytes(await self._receive_exactly(kept_bytes))) if kept_bytes else b""
                    relay.leave(memoryview(b"".join((unsent, rest, end))))
        except BaseException:
            relay.receiver.break_off()  # anything sent next would be mistaken for the rest of the frame
            raise
        self.io.has_news = True
        return None

    @may_run_in_reactor
    async def _receive_exactly(self, count: int) -> bytearray:
        rest = bytearray(count)
        unfilled = memoryview(rest)
        while unfilled:
            unfilled = unfilled[await self._receive_into(unfilled) :]
        return rest

    @may_run_in_reactor
    async def _receive_into(self, buffer: memoryview) -> int:
        while True:
            try:
                received = self.io.connected.recv_into(buffer)
            except BlockingIOError:
                await self.io.wait_readable()
            else:
                if not received:
                    raise RemoteProtocolError("the peer closed in the middle of a message")
                return received

    @may_run_in_reactor
    async def _receive_rest(self) -> bytes | None:
        reader = self._reader
        eager_reads = 0
        has_room = self.make_room is None
        while (frame := reader.next_frame()) is None:
            bytes_missing = reader.bytes_missing
            if not has_room and bytes_missing > LONG_REPLY_BYTES:
                has_room = True
                await self._make_room_for(bytes_missing)
            bytes_max = max(READ_BYTES, min(bytes_missing, _READ_BYTES_MAX))
            if eager_reads == _READS_WITHOUT_WAIT_MAX:
                await in_own_task()
                await self.io.wait_readable()
                eager_reads = 0
            try:
                data = self.io.connected.recv(bytes_max)
                eager_reads += 1
            except BlockingIOError:
                eager_reads = 0
                await self.io.wait_readable()
                continue
            if not data:
                if not reader.available:
                    return None
                raise RemoteProtocolError("the peer closed in the middle of a message")
            self.io.has_news |= len(data) == bytes_max
            reader.feed(data)
        return frame

    @may_run_in_reactor
    async def _make_room_for(self, bytes_missing: int) -> None:
        if self.make_room is not None:
            await self.make_room(bytes_missing)

    def post(self, frame: bytes) -> memoryview | None:
        """Send a frame like `send_now`; in the reactor, write it after all received messages have been processed.

        See `ReactorSocket`. The caller must receive next: that call raises an error, if there is one, and writes the
        bytes that did not fit into the socket. So a frame is posted only if that receive will wait, not if the peer has
        already sent more or has closed.
        """
        if self.is_closed or not self.is_between_frames or not self.io.can_post(frame):
            return self.send_now(frame)
        self.io.post(frame)
        return None

    def send_now(self, frame: bytes | memoryview) -> memoryview | None:
        """Write one frame, or a piece, as far as possible without waiting; return the rest for `send_rest`, or None."""
        if self.io.unsent:
            frame = self.io.give_up_to(frame)
        try:
            sent = self.io.connected.send(frame)
        except BlockingIOError:
            sent = 0
        return None if sent == len(frame) else memoryview(frame)[sent:]

    @property
    def is_sending(self) -> bool:
        """Whether posted bytes have not been sent yet."""
        return bool(self.io.unsent)

    def when_sent(self, do: Callable[[], object]) -> None:
        """Call back whenever all posted bytes have been sent."""
        self.io.when_sent = do

    @may_run_in_reactor
    async def send_rest(self, rest: memoryview) -> None:
        """Write the rest left by `send_now`, waiting while the peer does not read.

        After a cancellation the connection is unusable and the caller must close it.
        """
        await in_own_task()
        while rest:
            rest = await self.send_some(rest)

    async def send_some(self, rest: memoryview) -> memoryview:
        """Write part of the rest left by `send_now`, as soon as the peer has read something; return the remainder.

        Must be called in a task. If it is cancelled, nothing has been written.
        """
        await wait_writable(self.io.plain)
        with suppress(BlockingIOError):
            return rest[self.io.connected.send(rest) :]
        return rest

    @may_run_in_reactor
    async def send(self, frame: bytes | memoryview) -> None:
        """Call `send_now`, then `send_rest` if necessary; for code where an extra coroutine does not matter."""
        rest = self.send_now(frame)
        if rest is not None:
            await self.send_rest(rest)

    def half_close(self) -> bool:
        """Shut down the sending side, and let later receives skip `make_room`; return whether the shutdown succeeded.

        Posted bytes are sent first. Data that the peer still sends can be received.
        """
        self.make_room = None
        try:
            if self.io.unsent and self.send_now(b"") is not None:
                return False
            self.io.connected.shutdown(socket.SHUT_WR)
        except OSError:
            return False
        return True

    def break_off(self) -> None:
        """Shut the socket down, so that the peer sees it closed and reads and writes fail; `close` is still due."""
        with suppress(OSError):
            self.io.connected.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close at once; a task that waits on the socket gets `trio.ClosedResourceError`.

        Posted bytes are sent first, as far as possible without waiting.
        """
        if not self.is_closed:
            self.is_closed = True
            if self.io.unsent:
                with suppress(OSError):
                    self.send_now(b"")
            self.io.close()
            trio.lowlevel.notify_closing(self.io.plain)
            self.io.connected.close()
            # The connection's objects refer to each other, and stay until the next garbage collection.
            self._reader.discard()
            self.backlog = None
