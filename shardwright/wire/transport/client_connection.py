"""One client of a server: its connection, and what is known of the request that it waits for."""

from itertools import count
from typing import TYPE_CHECKING, Any

import trio

from shardwright.wire.transport.request_loop import may_run_in_reactor
from shardwright.wire.transport.stream import FrameStream
from shardwright.wire.transport.unread import UNREAD_REPLIES

if TYPE_CHECKING:
    from shardwright.wire.request import Request

_connection_ids = count(1)


class ClientConnection:
    """One client of a server.

    Attributes:
        id: number of the connection, unique in this process; ``connectionId`` of hello.
        peer: ``ip:port`` of the client (or the path of the UNIX socket).
        metadata: the ``client`` document of its handshake.
        compressors: what hello negotiated, our order.
        is_interruptible: the running operation may be cancelled when the client leaves.
        is_disconnected: the client has closed its side.
        is_waiting_for_news: the running request is a hello that waits for a change, which nobody else has to wait for.
        is_answered_verbatim: the reply to the running request is sent as the handler gives it, neither compressed nor
            with a checksum added; so the handler may as well write it to the stream itself.
        is_finished: nothing more is to be read from it after the running request.
        unanswered: the request that the handler works on, if its client waits for a reply.
        reserved_bytes: for long replies that its running request needs (`wire.transport.reservations`).
        state: whatever the handler keeps with this connection.
    """

    __slots__ = (
        "compressors",
        "id",
        "is_answered_verbatim",
        "is_busy",
        "is_disconnected",
        "is_finished",
        "is_interruptible",
        "is_waiting_for_news",
        "metadata",
        "peer",
        "reserved_bytes",
        "scope",
        "state",
        "stream",
        "unanswered",
    )

    def __init__(self, stream: FrameStream, peer: str) -> None:
        self.id = next(_connection_ids)
        self.stream = stream
        self.peer = peer
        self.metadata: dict[str, Any] | None = None
        self.compressors: tuple[str, ...] = ()
        self.is_answered_verbatim = False
        self.is_busy = False
        self.is_interruptible = False
        self.is_disconnected = False
        self.is_waiting_for_news = False
        self.is_finished = False
        self.unanswered: Request | None = None
        self.scope = trio.CancelScope()
        self.reserved_bytes = 0
        self.state: Any = None

    def allow_interruption(self) -> None:
        """The running operation is one that ends when its client leaves: reads and waits, not writes, as in MongoDB."""
        self.is_interruptible = True
        if self.is_disconnected:
            self.scope.cancel()

    def on_disconnect(self) -> None:
        """The client has left: what it waits for is of no use any more."""
        self.is_disconnected = True
        if self.is_interruptible:
            self.scope.cancel()

    @may_run_in_reactor
    async def send(self, frame: bytes) -> None:
        """Send a frame out of turn, as exhaust replies are; what is not read counts as unread.

        Raises:
            SlowClientError: there is no room for what is not read.
            OSError: the connection broke.
        """
        rest = self.stream.send_now(frame)
        if rest is not None:
            await UNREAD_REPLIES.send(self.stream, rest, self)
        elif self.reserved_bytes:
            UNREAD_REPLIES.reservations.release(self)
