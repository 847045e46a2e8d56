"""Detecting that a peer has disconnected while its socket is not being read.

A task that works on a request does not read its client's socket, so it would not notice a disconnect. One epoll set
watches all these sockets for the hang-up event only. The set itself is a file descriptor that one task waits for. So
watching costs nothing per operation, only when a connection is opened or closed.
"""

import select
import socket
from collections.abc import Callable
from typing import Final

from trio.lowlevel import wait_readable

from shardwright.wire.logger import get_logger

logger = get_logger("wire.disconnects")

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
