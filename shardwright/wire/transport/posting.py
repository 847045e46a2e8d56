"""Frames that are written only after everything received by this process has been processed.

Each peer is then woken once for all of its frames, and a woken peer does not take the processor from us while there are
more frames for it.
"""

import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from trio.lowlevel import wait_writable

from shardwright.wire.transport.reactor import REACTOR
from shardwright.wire.transport.readiness import Readiness
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor, until_resumed
from shardwright.wire.transport.tls_socket import TlsSocket

if TYPE_CHECKING:
    from collections.abc import Callable

_POSTED_BYTES_MAX: Final = 1 << 16
"""Longer frames are sent at once, because their peer can start working on them."""


class Posting:
    """The frames posted on one socket; they are sent before the next wait for a reply ends.

    Attributes:
        unsent: the bytes not sent yet.
        when_sent: called whenever everything has been sent.
    """

    __slots__ = ("_plain", "_readiness", "_socket", "unsent", "when_sent")

    def __init__(self, connected: socket.socket | TlsSocket, readiness: Readiness) -> None:
        self._socket = connected
        self._plain = connected.plain if isinstance(connected, TlsSocket) else connected
        self._readiness = readiness
        self.unsent = b""
        self.when_sent: Callable[[], object] | None = None

    def can_take(self, frame: bytes) -> bool:
        """Whether a frame may wait for the end of the reactor's round."""
        return (
            REACTOR.loop is not None
            and not self.unsent
            and not self._readiness.has_news
            and len(frame) <= _POSTED_BYTES_MAX
        )

    def take(self, frame: bytes) -> None:
        """Post a frame to be written at the end of the reactor's round; requires `can_take`."""
        self.unsent = frame
        REACTOR.afterwards.append(self._write)

    def give_up_to(self, frame: bytes | memoryview) -> bytes:
        """The posted bytes followed by a frame, for the caller to write now; nothing remains posted."""
        both, self.unsent = b"".join((self.unsent, frame)), b""
        return both

    @may_run_in_reactor
    async def wait_readable(self) -> None:
        """Wait until the socket may be readable or the peer has closed, and everything posted has been sent.

        Raises:
            OSError: the connection broke.
        """
        readiness = self._readiness
        loop = REACTOR.loop
        if loop is None:
            if self.unsent:
                await self._write_all()
            await readiness.wait_in_task()
        elif not readiness.take_news():
            readiness.resume_on_news(loop)
            await until_resumed()
            if self.unsent:
                readiness.forget_waiting()
                await self._write_all()
            if REACTOR.loop is None:  # its task has taken over
                readiness.forget_waiting()
                await readiness.wait_in_task()
        elif self.unsent:  # it was posted before another wait, and the peer has hung up or did not take all of it
            await self._write_all()

    def _write(self) -> None:
        if not self.unsent:
            return
        try:
            sent = self._socket.send(self.unsent)
        except OSError:
            sent = 0  # the buffer is full, or an error that the next call will raise again where it is handled
        self.unsent = self.unsent[sent:]
        if self.unsent:
            self._readiness.resume_now()  # or else the next wait, if there is none yet, begins with the rest
        elif self.when_sent is not None:
            self.when_sent()

    @may_run_in_reactor
    async def _write_all(self) -> None:
        await in_own_task()
        while self.unsent:
            await wait_writable(self._plain)
            with suppress(BlockingIOError):
                self.unsent = self.unsent[self._socket.send(self.unsent) :]
        if self.when_sent is not None:
            self.when_sent()
