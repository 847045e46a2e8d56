"""Frames that are written once everything that has come to this process is worked on.

That wakes the peers once for all that there is for them, and keeps a peer that is woken from taking the processor from
us while there is more to tell it.
"""

import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from trio.lowlevel import wait_writable

from shardwright.wire.transport.reactor import REACTOR
from shardwright.wire.transport.readiness import Readiness
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor, until_resumed

if TYPE_CHECKING:
    from collections.abc import Callable

_POSTED_BYTES_MAX: Final = 1 << 16
"""Longer frames have something to do for their peer at once."""


class Posting:
    """What is posted on one socket; it goes out before the next wait for an answer ends.

    Attributes:
        unsent: what has not gone out yet.
        when_sent: called whenever all of it has gone out.
    """

    __slots__ = ("_readiness", "_socket", "unsent", "when_sent")

    def __init__(self, connected: socket.socket, readiness: Readiness) -> None:
        self._socket = connected
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
        """Have a frame written at the end of the reactor's round, if `can_take`."""
        self.unsent = frame
        REACTOR.afterwards.append(self._write)

    def give_up_to(self, frame: bytes | memoryview) -> bytes:
        """What is posted and a frame that the caller writes now, in this order; nothing is posted any more."""
        both, self.unsent = b"".join((self.unsent, frame)), b""
        return both

    @may_run_in_reactor
    async def wait_readable(self) -> None:
        """Return when something may have come to the socket, or the peer has closed, and what is posted has gone out.

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

    def _write(self) -> None:
        if not self.unsent:
            return
        try:
            sent = self._socket.send(self.unsent)
        except OSError:
            sent = 0  # no room, or an error that is met again by who is to know of it
        self.unsent = self.unsent[sent:]
        if self.unsent:
            self._readiness.resume_now()
        else:
            self._on_sent()

    @may_run_in_reactor
    async def _write_all(self) -> None:
        await in_own_task()
        while self.unsent:
            await wait_writable(self._socket)
            with suppress(BlockingIOError):
                self.unsent = self.unsent[self._socket.send(self.unsent) :]
        self._on_sent()

    def _on_sent(self) -> None:
        if self.when_sent is not None:
            self.when_sent()
