"""Interfaces of clients for the accounting of unread replies: the stream for replies, and the reserved memory."""

from typing import Protocol


class Receiver(Protocol):
    """The stream for replies, for example a `wire.transport.stream.FrameStream`.

    Attributes:
        backlog: the rest of a reply, to be written before anything else.
    """

    backlog: memoryview | None

    @property
    def is_closed(self) -> bool:
        """Whether the stream is closed, so that nothing can be written."""

    def send_now(self, frame: bytes | memoryview) -> memoryview | None:
        """Write as much as possible without waiting; returns the rest, or None."""

    async def send_some(self, rest: memoryview) -> memoryview:
        """Write part of the rest as soon as the peer has read something; returns the remainder."""

    def break_off(self) -> None:
        """Make every later read and write fail."""


class ReceivingClient(Protocol):
    """A client that waits for a reply, for example a `wire.transport.client_connection.ClientConnection`.

    Attributes:
        reserved_bytes: memory reserved for long replies to its running request.
    """

    reserved_bytes: int

    @property
    def stream(self) -> Receiver:
        """The stream for its replies."""

    @property
    def is_interruptible(self) -> bool:
        """Whether the running operation may be cancelled."""
