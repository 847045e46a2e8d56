"""How a long answer is passed on while it is still coming."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio

from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor
from shardwright.wire.transport.unread import UNREAD_REPLIES

if TYPE_CHECKING:
    from shardwright.wire.transport.stream import FrameStream


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
        self._patient_until: float | None = None

    @may_run_in_reactor
    async def send(self, piece: bytes | memoryview) -> memoryview | None:
        """Pass a piece on; returns what the receiver has not taken when it is waited for no longer.

        Raises:
            OSError: the receiver's connection broke.
        """
        try:
            rest = self.receiver.send_now(piece)
            if rest is None:
                return None
            await in_own_task()
            started = trio.current_time()
            if self._patient_until is None:
                self._patient_until = started + self.relay_seconds
            while rest:
                with trio.move_on_at(min(started + self.patience_seconds, self._patient_until)):
                    rest = await self.receiver.send_some(rest)
                    continue
                return rest
        except OSError:
            self.is_receiver_gone = True
            raise
        return None

    @property
    def patience_seconds(self) -> float:
        """How long the receiver has for one piece, while it keeps the connection on which the answer comes."""
        return math.inf

    @property
    def relay_seconds(self) -> float:
        """How long the receiver has in all, from when it was first waited for."""
        return math.inf

    @contextmanager
    def room_for(self, size: int) -> Iterator[None]:
        """Receive the rest of an answer in the block, so that the connection on which it comes is free for others.

        Raises:
            SlowClientError: it would take too much memory.
        """
        if not UNREAD_REPLIES.has_room_for(size):
            self.is_receiver_gone = True
            raise UNREAD_REPLIES.too_slow()
        with UNREAD_REPLIES.reserved(size):
            yield

    def leave(self, rest: memoryview | None) -> None:
        """Leave the rest of the answer to the task that serves the receiver."""
        self.receiver.backlog = rest

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
