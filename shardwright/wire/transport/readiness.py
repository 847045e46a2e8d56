"""Whether there is something to read on a socket, which the reactor says once for all that has come."""

import socket

from trio.lowlevel import wait_readable

from shardwright.wire.transport.reactor import HANG_UP, REACTOR
from shardwright.wire.transport.request_loop import RequestLoop


class Readiness:
    """What is known of a socket that is read from, and the request loop that waits for it.

    Attributes:
        has_news: something may have come that was not read; true for good once the peer has closed. Whoever stops
            reading before the socket is empty sets it.
    """

    __slots__ = ("_is_hung_up", "_is_watched", "_socket", "_waiting", "has_news")

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._is_watched = False
        self._is_hung_up = False
        self._waiting: RequestLoop | None = None
        self.has_news = False

    def take_news(self) -> bool:
        """Whether something may have come, which the caller is about to read."""
        if not self.has_news:
            return False
        self.has_news = self._is_hung_up
        return True

    def resume_on_news(self, loop: RequestLoop) -> None:
        """Have a request loop, which gives way next, resumed when something has come."""
        if not self._is_watched:
            REACTOR.watch(self._socket, self._on_readable)
            self._is_watched = True
        self._waiting = loop

    def resume_now(self) -> None:
        """Resume the request loop that waits, if there is one, although nothing has come."""
        loop, self._waiting = self._waiting, None
        if loop is not None:
            loop.resume()

    def forget_waiting(self) -> None:
        """The request loop waits no longer, or by itself."""
        self._waiting = None

    async def wait_in_task(self) -> None:
        """Return when something may have come, or the peer has closed; for code that a task of trio's runs."""
        await wait_readable(self._socket)
        self.has_news = self._is_hung_up

    def close(self) -> None:
        """Stop watching; to be called before the socket is closed."""
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
