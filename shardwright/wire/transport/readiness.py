"""Whether a socket may have something to read, given one notification of the reactor for all that has arrived."""

import socket

import trio
from trio.lowlevel import wait_readable

from shardwright.wire.transport.reactor import HANG_UP, REACTOR, Resumable
from shardwright.wire.transport.tls_socket import TlsSocket


class Readiness:
    """The read readiness of a socket, and the request loop that waits for it.

    Attributes:
        has_news: whether there may be unread data; stays true once the peer has closed. A reader that stops before
            the socket is empty sets it.
    """

    __slots__ = ("_is_hung_up", "_is_watched", "_secured", "_socket", "_waiting", "has_news")

    def __init__(self, connected: socket.socket | TlsSocket) -> None:
        self._secured = connected if isinstance(connected, TlsSocket) else None
        self._socket = connected.plain if isinstance(connected, TlsSocket) else connected
        self._is_watched = False
        self._is_hung_up = False
        self._waiting: Resumable | None = None
        self.has_news = self._secured is not None and self._secured.may_have_unread

    def take_news(self) -> bool:
        """Whether there may be something to read, which the caller then reads."""
        if not self.has_news:
            return False
        self.has_news = self._is_hung_up
        return True

    def resume_on_news(self, loop: Resumable) -> None:
        """Resume a request loop, which is about to yield, when there is something to read."""
        if not self._is_watched:
            REACTOR.watch(self._socket, self._on_readable)
            self._is_watched = True
        self._waiting = loop

    def resume_now(self) -> None:
        """Resume the waiting request loop even though there is nothing to read; or let the next wait end at once."""
        loop, self._waiting = self._waiting, None
        if loop is None:
            self.has_news = True
        else:
            loop.resume()

    def forget_waiting(self) -> None:
        """Do not resume the request loop any more: it has stopped waiting, or waits by itself."""
        self._waiting = None

    async def wait_in_task(self) -> None:
        """Wait until there may be something to read, or the peer has closed; for code that runs in a trio task."""
        if self._secured is not None and self._secured.may_have_unread:
            await trio.lowlevel.checkpoint()
        else:
            await wait_readable(self._socket)
        self.has_news = self._is_hung_up

    def close(self) -> None:
        """Stop watching; must be called before the socket is closed."""
        if self._is_watched:
            REACTOR.unwatch(self._socket)

    def _on_readable(self, events: int) -> None:
        loop, self._waiting = self._waiting, None
        if events & HANG_UP:
            self._is_hung_up = self.has_news = True
        if loop is None:
            self.has_news = True
        else:
            loop.resume()
