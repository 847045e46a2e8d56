"""How a long answer is passed on while it is still coming."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wire.transport.stream import FrameStream


class Relay:
    """Passes an answer on as it is; subclasses change its beginning and its end on the way.

    Args:
        receiver: where it goes.

    Attributes:
        is_receiver_gone: it is the receiver's connection that broke.
    """

    def __init__(self, receiver: "FrameStream") -> None:
        self.receiver = receiver
        self.is_receiver_gone = False

    async def send(self, piece: bytes | memoryview) -> None:
        """Pass a piece on.

        Raises:
            OSError: the receiver's connection broke.
        """
        try:
            await self.receiver.send(piece)
        except OSError:
            self.is_receiver_gone = True
            raise

    def begin(self, beginning: bytes) -> tuple[bytes, int] | None:
        """Look at the first bytes of a long frame, at least its header.

        Returns:
            What goes in their place, of the same length, and how many of the frame's last bytes are left to `end`; None
            to have the frame received as a whole and passed on by nobody.
        """
        return beginning, 0

    def end(self, rest: bytes) -> bytes:
        """What goes in the place of the last bytes, of the same length."""
        return rest
