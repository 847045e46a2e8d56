"""Forwarding a long reply while it is still arriving."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from shardwright.wire.transport.reply_memory import UNREAD_REPLIES
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor
from shardwright.wire.transport.reservations import Receiver


class Relay:
    """Forwarder of a reply; subclasses change its beginning and end.

    ``is_receiver_gone`` tells whether the receiver's connection broke, rather than the sender's.
    """

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self.has_begun = False
        self.is_receiver_gone = False
        self._patient_until: float | None = None

    @may_run_in_reactor
    async def send(self, piece: bytes | memoryview) -> memoryview | None:
        """Forward a piece; return the part that the receiver has not accepted within `patience_seconds`, or None.

        Raises OSError if the receiver's connection broke.
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
        """Time limit for one piece while the receiver holds up the connection of the reply."""
        return math.inf

    @property
    def relay_seconds(self) -> float:
        """Time limit for the whole reply, counted from the first wait for the receiver."""
        return math.inf

    @contextmanager
    def room_for(self, size: int) -> Iterator[None]:
        """Count the rest of a reply, which is received in the block so that its connection becomes free for others.

        Raises SlowClientError if the rest would use too much memory.
        """
        if not UNREAD_REPLIES.has_room_for(size):
            self.is_receiver_gone = True
            raise UNREAD_REPLIES.too_slow()
        with UNREAD_REPLIES.reserved(size):
            yield

    def leave(self, rest: memoryview | None) -> None:
        """Leave the rest of the reply to the task that serves the receiver."""
        self.receiver.backlog = rest

    def begin(self, beginning: bytes) -> tuple[bytes, int] | None:
        """Examine the first bytes of a long frame, at least its header.

        Returns:
            Their replacement, of the same length, and the number of the frame's last bytes that are passed to `end`;
            None if the frame should be received whole and not forwarded.
        """
        return beginning, 0

    def end(self, rest: bytes) -> bytes:
        """Return the replacement of the last bytes, of the same length."""
        return rest
