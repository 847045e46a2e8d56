"""Replies that clients do not read: how much memory they may take, in total and for one client.

A reply that does not fit into the client's socket waits here. What is only passed on waits where it comes from instead:
nothing more is read of it (`wire.transport.relay`), until it has kept a connection that others need for too long. What
is received whole waits for room first (`wire.transport.reservations`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from wire.transport.reservations import Reservations
from wire.transport.strand import in_own_task

if TYPE_CHECKING:
    from wire.transport.client_connection import ClientConnection
    from wire.transport.stream import FrameStream


@dataclass(frozen=True, slots=True)
class UnreadBounds:
    """What the replies of a process that were not read may take.

    Attributes:
        total_bytes: of all clients; beyond it the client is closed that has not read anything for longest.
        client_bytes: of one client; it is closed if it leaves more unread, and reads nothing, for `patience_seconds`.
        patience_seconds: how long a client that reads nothing may also keep a connection to a shard to itself.
    """

    total_bytes: int = 256 << 20
    client_bytes: int = 32 << 20
    patience_seconds: float = 10.0

    @property
    def stalled_seconds(self) -> float:
        """A client that takes nothing for so long is closed if others are waiting for room."""
        return self.patience_seconds / 5


class SlowClientError(OSError):
    """A client does not read its replies and would take more memory than it may; its connection has to be closed."""


class _Waiting:
    """The rest of one reply.

    Attributes:
        size: bytes.
        since: when the client last took any of it, on trio's clock.
        scope: cancelled to make room for others.
    """

    __slots__ = ("scope", "since", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.since = trio.current_time()
        self.scope = trio.CancelScope()


class UnreadReplies:
    """What is waiting to be read by the clients of this process.

    Attributes:
        bounds: how much it may be.
        total_bytes: how much it is, and will be with what is on its way.
        peak_bytes: how much it has been at most.
        reservations: what is on its way.
        clients_closed: how many clients were closed because it was too much.
    """

    def __init__(self, bounds: UnreadBounds = UnreadBounds()) -> None:
        self.bounds = bounds
        self.total_bytes = 0
        self.peak_bytes = 0
        self.clients_closed = 0
        self.reservations = Reservations(self)
        self._waiting: set[_Waiting] = set()

    async def send(self, stream: "FrameStream", rest: memoryview, client: "ClientConnection | None" = None) -> None:
        """Write the rest of a reply, for as long as there is room for it.

        Args:
            stream: where to.
            rest: what did not fit into the socket.
            client: what was reserved for it is released: the rest counts from now on.

        Raises:
            SlowClientError: there is not.
            OSError: the connection broke.
        """
        await in_own_task()
        waiting = _Waiting(len(rest))
        self._waiting.add(waiting)
        self.change_total(waiting.size - (self.reservations.take(client) if client is not None else 0))
        try:
            self._make_room()
            with waiting.scope:
                while rest:
                    with trio.move_on_after(self._patience_with(waiting)):
                        rest = await stream.send_some(rest)
                        self._resize(waiting, len(rest))
                        waiting.since = trio.current_time()
                        continue
                    break
        finally:
            self._waiting.discard(waiting)
            self._resize(waiting, 0)
        if rest:
            raise self.too_slow()

    @contextmanager
    def reserved(self, size: int) -> Iterator[None]:
        """In the block so many bytes are on their way here: many replies may come at once, and none is here yet."""
        self.change_total(size)
        try:
            yield
        finally:
            self.change_total(-size)

    def change_total(self, by: int) -> None:
        """Count so many bytes more, or fewer: then those who wait for room are admitted."""
        self.total_bytes += by
        if by > 0:
            self.peak_bytes = max(self.peak_bytes, self.total_bytes)
        else:
            self.reservations.admit_waiting()

    def has_room_for(self, size: int) -> bool:
        """Whether a client may leave so many bytes unread as things are."""
        return size <= self.bounds.client_bytes and self.total_bytes + size <= self.bounds.total_bytes

    def too_slow(self) -> SlowClientError:
        """Count a client that is closed; the error to raise for it."""
        self.clients_closed += 1
        return SlowClientError("the client does not read its replies")

    def _patience_with(self, waiting: _Waiting) -> float:
        return self.bounds.patience_seconds if waiting.size > self.bounds.client_bytes else float("inf")

    def close_stalled(self) -> bool:
        """Close the client that has taken nothing for longest, if that is long; returns whether there was one."""
        slowest = self._slowest()
        if slowest is None or trio.current_time() - slowest.since < self.bounds.stalled_seconds:
            return False
        self._end(slowest)
        return True

    def _make_room(self) -> None:
        """End what has waited longest without being read, until the rest is within the bound."""
        while self.total_bytes - self.reservations.total_bytes > self.bounds.total_bytes:
            slowest = self._slowest()
            if slowest is None:
                break
            self._end(slowest)

    def _slowest(self) -> _Waiting | None:
        return min((each for each in self._waiting if each.size), key=lambda each: each.since, default=None)

    def _end(self, waiting: _Waiting) -> None:
        waiting.scope.cancel()
        self._resize(waiting, 0)

    def _resize(self, waiting: _Waiting, size: int) -> None:
        if waiting.size:  # else room was made of it already
            change, waiting.size = size - waiting.size, size
            self.change_total(change)


UNREAD_REPLIES: Final = UnreadReplies()
"""Those of this process."""
