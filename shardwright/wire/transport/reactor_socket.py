"""A socket that the reactor watches, and whose frames are written together at the end of the reactor's round.

The reactor notifies once for all data that has arrived, so the socket remembers whether there may be more to read.

Frames are written only after everything received by this process has been processed. Each peer is then woken once for
all of its frames, and a woken peer does not take the processor from us while there are more frames for it.
"""

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import trio
from trio.lowlevel import wait_readable, wait_writable

from shardwright.wire.transport.reactor import HANG_UP, REACTOR
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor, until_resumed
from shardwright.wire.transport.tls_socket import TlsSocket

_POSTED_BYTES_MAX: Final = 1 << 16
"""Longest frame that is posted. Longer ones are sent at once, because their peer can start working on them."""


class ReactorSocket:
    """A connected socket, plain or with TLS.

    Attributes:
        has_news: whether there may be unread data; stays true once the peer has closed. A reader that stops before the
            socket is empty sets it.
        unsent: the posted bytes that are not sent yet; they are sent before the next wait for a reply ends.
        when_sent: called whenever everything has been sent.
    """

    __slots__ = (
        "_is_hung_up",
        "_is_watched",
        "_resume",
        "_secured",
        "connected",
        "has_news",
        "plain",
        "unsent",
        "when_sent",
    )

    def __init__(self, connected: socket.socket | TlsSocket) -> None:
        self.connected = connected
        self._secured = connected if isinstance(connected, TlsSocket) else None
        self.plain = connected.plain if isinstance(connected, TlsSocket) else connected
        self._is_watched = False
        self._is_hung_up = False
        self._resume: Callable[[], None] | None = None
        self.has_news = self._secured is not None and self._secured.may_have_unread
        self.unsent = b""
        self.when_sent: Callable[[], object] | None = None

    # Reading

    def take_news(self) -> bool:
        """Whether there may be something to read; resets `has_news`, so the caller must read."""
        if not self.has_news:
            return False
        self.has_news = self._is_hung_up
        return True

    def resume_on_news(self, resume: Callable[[], None]) -> None:
        """Call back when there is something to read; the caller is about to yield to the reactor."""
        if not self._is_watched:
            REACTOR.watch(self.plain, self._on_readable)
            self._is_watched = True
        self._resume = resume

    def forget_waiting(self) -> None:
        """Cancel the callback, because its owner has stopped waiting or waits by itself."""
        self._resume = None

    async def wait_in_task(self) -> None:
        """Wait until there may be something to read, or the peer has closed; for code that runs in a trio task."""
        if self._secured is not None and self._secured.may_have_unread:
            await trio.lowlevel.checkpoint()
        else:
            await wait_readable(self.plain)
        self.has_news = self._is_hung_up

    @may_run_in_reactor
    async def wait_readable(self) -> None:
        """Wait until the socket may be readable or the peer has closed, and everything posted has been sent.

        Raises OSError if the connection broke.
        """
        loop = REACTOR.loop
        if loop is None:
            if self.unsent:
                await self._write_all()
            await self.wait_in_task()
        elif not self.take_news():
            self.resume_on_news(loop.resume)
            await until_resumed()
            if self.unsent:
                self.forget_waiting()
                await self._write_all()
            if REACTOR.loop is None:  # its task has taken over
                self.forget_waiting()
                await self.wait_in_task()
        elif self.unsent:  # posted before another wait, and the peer has hung up or did not take all of it
            await self._write_all()

    def close(self) -> None:
        """Stop watching; must be called before the socket is closed."""
        if self._is_watched:
            REACTOR.unwatch(self.plain)

    def _on_readable(self, events: int) -> None:
        resume, self._resume = self._resume, None
        if events & HANG_UP:
            self._is_hung_up = self.has_news = True
        if resume is None:
            self.has_news = True
        else:
            resume()

    # Writing

    def can_post(self, frame: bytes) -> bool:
        """Whether a frame may wait for the end of the reactor's round."""
        return REACTOR.loop is not None and not self.unsent and not self.has_news and len(frame) <= _POSTED_BYTES_MAX

    def post(self, frame: bytes, resume: Callable[[], None] | None = None) -> None:
        """Post a frame to be written at the end of the reactor's round; nothing may be unsent.

        A ``resume`` is called as by `resume_on_news`.
        """
        self.unsent = frame
        REACTOR.afterwards.append(self._write)
        if resume is not None:
            if self._is_watched:
                self._resume = resume
            else:
                self.resume_on_news(resume)

    def give_up_to(self, frame: bytes | memoryview) -> bytes:
        """Return the posted bytes followed by a frame, for the caller to write now; nothing remains posted."""
        both, self.unsent = b"".join((self.unsent, frame)), b""
        return both

    def _write(self) -> None:
        frame = self.unsent
        if not frame:
            return
        try:
            sent = self.connected.send(frame)
        except OSError:
            sent = 0  # the buffer is full, or an error that the next call will raise again where it is handled
        if sent == len(frame):
            self.unsent = b""
            if self.when_sent is not None:
                self.when_sent()
            return
        self.unsent = frame[sent:]
        # The code that waits for the reply writes the rest; or the next wait does, if there is none yet.
        resume, self._resume = self._resume, None
        if resume is None:
            self.has_news = True
        else:
            resume()

    @may_run_in_reactor
    async def _write_all(self) -> None:
        await in_own_task()
        while self.unsent:
            await wait_writable(self.plain)
            with suppress(BlockingIOError):
                self.unsent = self.unsent[self.connected.send(self.unsent) :]
        if self.when_sent is not None:
            self.when_sent()
