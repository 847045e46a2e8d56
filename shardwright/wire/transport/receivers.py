"""Clients as those see them who count what is kept for them: where their replies go, and how much is reserved."""

from typing import Protocol


class Receiver(Protocol):
    """Where replies are written, as a `wire.transport.stream.FrameStream`.

    Attributes:
        backlog: the rest of a reply, to be written before anything else.
    """

    backlog: memoryview | None

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be written any more."""

    def send_now(self, frame: bytes | memoryview) -> memoryview | None:
        """Write as far as it goes; returns the rest."""

    async def send_some(self, rest: memoryview) -> memoryview:
        """Write more of the rest once the peer has taken anything; returns what is left."""

    def break_off(self) -> None:
        """Have every later read and write fail."""


class ReceivingClient(Protocol):
    """Who waits for a reply, as a `wire.transport.client_connection.ClientConnection`.

    Attributes:
        reserved_bytes: for long replies that its running request needs.
    """

    reserved_bytes: int

    @property
    def stream(self) -> Receiver:
        """Where its replies go."""

    @property
    def is_interruptible(self) -> bool:
        """Whether the running operation may be cancelled."""
