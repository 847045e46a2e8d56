"""Whole frames over a non-blocking socket.

Reads are tried before they wait and a frame is written with one call, because a wait costs a turn of the event loop,
which is most of what a hop costs.
"""

import socket
from contextlib import suppress
from typing import Final

import trio
from trio.lowlevel import wait_readable, wait_writable

from wire.errors import RemoteProtocolError
from wire.message import FrameReader

_READ_BYTES: Final = 65_536
_READ_BYTES_MAX: Final = 1 << 20
_READS_WITHOUT_WAIT_MAX: Final = 16


class FrameStream:
    """Sends and receives frames on a connected socket, which it owns.

    One task may receive and one may send at a time.
    """

    __slots__ = ("_eager_reads", "_reader", "_socket", "is_closed")

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        if connected.family != socket.AF_UNIX:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._socket = connected
        self._reader = FrameReader()
        self._eager_reads = 0
        self.is_closed = False

    @property
    def socket(self) -> socket.socket:
        """The socket, for those who watch it; reading and writing is left to this object."""
        return self._socket

    async def receive(self) -> bytes | None:
        """The next frame; None when the peer has closed between two frames.

        Raises:
            RemoteProtocolError: impossible framing, or the peer closed in the middle of a frame.
            OSError: the connection broke.
        """
        reader = self._reader
        frame = reader.next_frame()
        while frame is None:
            data = await self._read(max(_READ_BYTES, min(reader.bytes_missing, _READ_BYTES_MAX)))
            if not data:
                if reader.is_between_frames:
                    return None
                raise RemoteProtocolError("the peer closed in the middle of a message")
            reader.feed(data)
            frame = reader.next_frame()
        return frame

    async def _read(self, bytes_max: int) -> bytes:
        # A peer that always has more to say must not keep the other tasks from running.
        if self._eager_reads < _READS_WITHOUT_WAIT_MAX:
            try:
                data = self._socket.recv(bytes_max)
            except BlockingIOError:
                pass
            else:
                self._eager_reads += 1
                return data
        self._eager_reads = 0
        while True:
            await wait_readable(self._socket)
            with suppress(BlockingIOError):
                return self._socket.recv(bytes_max)

    async def send(self, frame: bytes) -> None:
        """Write one frame, waiting while the peer does not read.

        Cancelled on the way, it leaves the connection unusable; the caller closes it.

        Raises:
            OSError: the connection broke.
        """
        try:
            sent = self._socket.send(frame)
        except BlockingIOError:
            sent = 0
        if sent == len(frame):
            return
        rest = memoryview(frame)[sent:]
        while rest:
            await wait_writable(self._socket)
            with suppress(BlockingIOError):
                rest = rest[self._socket.send(rest) :]

    def close(self) -> None:
        """Close at once; a task that waits on the socket gets `trio.ClosedResourceError`."""
        if not self.is_closed:
            self.is_closed = True
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()
