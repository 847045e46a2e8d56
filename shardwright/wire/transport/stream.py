"""Whole frames over a non-blocking socket.

A frame is written with one call, and read with one where it can be: a wait costs a turn of the event loop, which is
most of what a hop costs. What request loops send is written together (`wire.transport.posting`). A read is tried before
waiting only in the middle of a frame; between frames, where a daemon waits for a client's next request or a backend's
reply, the try would nearly always fail and cost more than it saves.
"""

import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import trio
from trio.lowlevel import wait_writable

from shardwright.wire.errors import RemoteProtocolError
from shardwright.wire.frames import HEADER_BYTES, FrameReader, frame_length, is_whole_frame
from shardwright.wire.transport.posting import Posting
from shardwright.wire.transport.readiness import Readiness
from shardwright.wire.transport.relay import Relay
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor
from shardwright.wire.transport.reservations import LONG_REPLY_BYTES

_READ_BYTES: Final = 65_536
_READ_BYTES_MAX: Final = 1 << 20
_RELAY_BYTES: Final = 1 << 18
_LOCAL_SEND_BUFFER_BYTES: Final = 1 << 20
"""What UNIX sockets may hold, as far as ``net.core.wmem_max`` allows: their buffers do not grow as those of TCP do."""
_READS_WITHOUT_WAIT_MAX: Final = 16
"""A peer that always has more to say must not keep the other tasks from running."""


class FrameStream:
    """Sends and receives frames on a connected socket, which it owns.

    One task may receive and one may send at a time.

    Attributes:
        backlog: the rest of a reply that was passed on here and is to be written before anything else.
        is_closed: `close` was called.
        make_room: called before the rest of a long frame is received, with what it lacks.
    """

    __slots__ = (
        "_posting",
        "_reader",
        "_readiness",
        "_socket",
        "backlog",
        "is_closed",
        "make_room",
    )

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        if connected.family == socket.AF_UNIX:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LOCAL_SEND_BUFFER_BYTES)
        else:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._socket = connected
        self._reader = FrameReader()
        self._readiness = Readiness(connected)
        self._posting = Posting(connected, self._readiness)
        self.backlog: memoryview | None = None
        self.is_closed = False
        self.make_room: Callable[[int], Awaitable[None]] | None = None

    @property
    def socket(self) -> socket.socket:
        """The socket, for those who watch it; reading and writing is left to this object."""
        return self._socket

    @may_run_in_reactor
    async def receive(self) -> bytes | None:
        """The next frame; None when the peer has closed between two frames.

        Raises:
            RemoteProtocolError: impossible framing, or the peer closed in the middle of a frame.
            OSError: the connection broke.
        """
        reader = self._reader
        if reader.is_between_frames:
            # The usual case, with nothing in the way: one wait, one read, one whole frame.
            await self._posting.wait_readable()
            try:
                data = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                return await self._receive_rest()
            if not data:
                return None
            if is_whole_frame(data):
                self._readiness.has_news |= len(data) == _READ_BYTES
                return data
            reader.feed(data)
        return await self._receive_rest()

    @may_run_in_reactor
    async def receive_beginning(self) -> bytes | None:
        """As `receive`; but of a long frame only what came first, the rest being left to `relay`.

        What is not a whole frame (`is_whole_frame`) is such a beginning, and has the header at least.

        Raises:
            RemoteProtocolError: as `receive`.
            OSError: the connection broke.
        """
        if self._reader.is_between_frames:
            while True:
                await self._posting.wait_readable()
                try:
                    data = self._socket.recv(_READ_BYTES)
                except BlockingIOError:
                    continue  # the news was of bytes that the last frame took along
                break
            if not data:
                return None
            if is_whole_frame(data) or (len(data) >= HEADER_BYTES and frame_length(data) > _RELAY_BYTES):
                return data
            self._reader.feed(data)
        return await self._receive_rest()

    @may_run_in_reactor
    async def relay(self, beginning: bytes, relay: Relay) -> bytes | None:
        """Pass a long frame on while it is still coming, in pieces that are copied nowhere else.

        Args:
            beginning: what `receive_beginning` gave.
            relay: where it goes, and what is changed on the way.

        Returns:
            The whole frame if ``relay`` did not want it.

        Raises:
            RemoteProtocolError: the peer closed in the middle of the frame.
            OSError: either connection broke.
        """
        begun = relay.begin(beginning)
        if begun is None:
            self._reader.feed(beginning)
            return await self._receive_rest()
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
            relay.receiver.break_off()  # whatever it was sent next would be taken for the rest of the frame
            raise
        self._readiness.has_news = True
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
                received = self._socket.recv_into(buffer)
            except BlockingIOError:
                await self._posting.wait_readable()
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
            bytes_max = max(_READ_BYTES, min(bytes_missing, _READ_BYTES_MAX))
            if eager_reads == _READS_WITHOUT_WAIT_MAX:
                await in_own_task()
                await self._posting.wait_readable()
                eager_reads = 0
            try:
                data = self._socket.recv(bytes_max)
                eager_reads += 1
            except BlockingIOError:
                eager_reads = 0
                await self._posting.wait_readable()
                continue
            if not data:
                if reader.is_between_frames:
                    return None
                raise RemoteProtocolError("the peer closed in the middle of a message")
            self._readiness.has_news |= len(data) == bytes_max
            reader.feed(data)
        return frame

    @may_run_in_reactor
    async def _make_room_for(self, bytes_missing: int) -> None:
        if self.make_room is not None:
            await self.make_room(bytes_missing)

    def post(self, frame: bytes) -> memoryview | None:
        """As `send_now`; but in the reactor, the frame is written once all that has come to this process is worked on.

        See `Posting`. Who posts has to go on to receive: there an error is raised, if it comes to one, and the rest is
        written that does not fit into the socket. So only what will be waited for is posted: not if the peer has sent
        more already, or has closed.

        Raises:
            OSError: the connection broke.
        """
        if self.is_closed or not self._reader.is_between_frames or not self._posting.can_take(frame):
            return self.send_now(frame)
        self._posting.take(frame)
        return None

    def send_now(self, frame: bytes | memoryview) -> memoryview | None:
        """Write one frame, or a piece of one, as far as it goes; returns the rest, which `send_rest` has to write.

        Raises:
            OSError: the connection broke.
        """
        if self._posting.unsent:
            frame = self._posting.give_up_to(frame)
        try:
            sent = self._socket.send(frame)
        except BlockingIOError:
            sent = 0
        return None if sent == len(frame) else memoryview(frame)[sent:]

    @property
    def is_sending(self) -> bool:
        """Whether something is posted that has not gone out."""
        return bool(self._posting.unsent)

    def when_sent(self, do: Callable[[], object]) -> None:
        """Call back once what is posted has gone out, and whenever that is so again."""
        self._posting.when_sent = do

    @may_run_in_reactor
    async def send_rest(self, rest: memoryview) -> None:
        """Write what `send_now` has left, waiting while the peer does not read.

        Cancelled on the way, it leaves the connection unusable; the caller closes it.

        Raises:
            OSError: the connection broke.
        """
        await in_own_task()
        while rest:
            rest = await self.send_some(rest)

    async def send_some(self, rest: memoryview) -> memoryview:
        """Write as much of what `send_now` has left as goes, once the peer has taken anything; returns what is left.

        To be called in a task. Cancelled, it has written nothing.

        Raises:
            OSError: the connection broke.
        """
        await wait_writable(self._socket)
        with suppress(BlockingIOError):
            return rest[self._socket.send(rest) :]
        return rest

    @may_run_in_reactor
    async def send(self, frame: bytes | memoryview) -> None:
        """`send_now`, and `send_rest` if need be; for those who do not send all the time.

        Raises:
            OSError: the connection broke.
        """
        rest = self.send_now(frame)
        if rest is not None:
            await self.send_rest(rest)

    def break_off(self) -> None:
        """Have the peer find the connection closed, and every later read and write fail; it is still to be closed."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close at once; a task that waits on the socket gets `trio.ClosedResourceError`.

        What was posted is sent before, as far as it goes.
        """
        if not self.is_closed:
            self.is_closed = True
            if self._posting.unsent:
                with suppress(OSError):
                    self.send_now(b"")
            self._readiness.close()
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()
