"""Replies that clients do not read: how much memory they may take, in total and for one client.

A reply that does not fit into the client's socket waits here. What is only passed on waits where it comes from instead:
nothing more is read of it (`wire.transport.relay`), until it has kept a connection that others need for too long. What
is received whole waits for room first (`wire.transport.reservations`). What cursors keep between two requests counts,
too (`wire.transport.holdings`).
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from shardwright.wire.transport.holdings import Holding, Holdings
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor
from shardwright.wire.transport.reservations import Reservations

if TYPE_CHECKING:
    from shardwright.wire.transport.client_connection import ClientConnection
    from shardwright.wire.transport.stream import FrameStream


PROGRESS_BYTES: Final = 1 << 18
"""A client that takes less than this in the time that is allowed for it counts as one that reads nothing."""


@dataclass(frozen=True, slots=True)
class UnreadBounds:
    """What the replies of a process that were not read may take.

    Attributes:
        total_bytes: of all clients; beyond it the client is closed, or its cursor ended, that has read nothing for
            longest.
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

    @property
    def relay_seconds(self) -> float:
        """How long a client may keep a connection to a shard to itself in all, for one answer that it reads slowly."""
        return 3 * self.patience_seconds


class SlowClientError(OSError):
    """A client does not read its replies and would take more memory than it may; its connection has to be closed."""


class _Waiting:
    """The rest of one reply.

    Attributes:
        size: bytes.
        since: when the client last had taken `PROGRESS_BYTES` of it, on trio's clock.
        scope: cancelled to make room for others.
    """

    __slots__ = ("_size_then", "scope", "since", "size")

    def __init__(self, size: int) -> None:
        self.size = self._size_then = size
        self.since = trio.current_time()
        self.scope = trio.CancelScope()

    def note_progress(self, size: int) -> None:
        """So much is left."""
        if self._size_then - size >= PROGRESS_BYTES:
            self._size_then = size
            self.since = trio.current_time()


class UnreadReplies:
    """What is waiting to be read by the clients of this process.

    Attributes:
        bounds: how much it may be.
        total_bytes: how much it is, and will be with what is on its way.
        peak_bytes: how much it has been at most.
        reservations: what is on its way.
        holdings: what cursors keep between two requests.
        clients_closed: how many clients were closed because it was too much.
    """

    def __init__(self, bounds: UnreadBounds = UnreadBounds()) -> None:
        self.bounds = bounds
        self.total_bytes = 0
        self.peak_bytes = 0
        self.clients_closed = 0
        self.reservations = Reservations(self)
        self.holdings = Holdings(self)
        self._waiting: set[_Waiting] = set()

    @may_run_in_reactor
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
            self.make_room()
            self.reservations.admit_waiting()
            with waiting.scope:
                while rest:
                    with trio.move_on_at(self._patient_until(waiting)):
                        rest = await stream.send_some(rest)
                        self._resize(waiting, len(rest))
                        waiting.note_progress(len(rest))
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

    def _patient_until(self, waiting: _Waiting) -> float:
        bounds = self.bounds
        return waiting.since + bounds.patience_seconds if waiting.size > bounds.client_bytes else math.inf

    def close_stalled(self) -> bool:
        """End what has waited longest, if that is long: a reply, or a cursor, which may rest for `patience_seconds`.

        Returns:
            Whether there was one.
        """
        now = trio.current_time()
        slowest, oldest = self._slowest(), self.holdings.oldest
        if slowest is not None and now - slowest.since >= self.bounds.stalled_seconds:
            self._end(slowest)
        elif oldest is not None and now - oldest.since >= self.bounds.patience_seconds:
            self.holdings.end(oldest)
        else:
            return False
        return True

    def make_room(self, *, spared: Holding | None = None) -> None:
        """End what has waited longest without being read, until the rest is within the bound.

        Args:
            spared: is not ended; nor is anything once it is the one that has waited longest.
        """
        while self.total_bytes - self.reservations.total_bytes > self.bounds.total_bytes:
            slowest, oldest = self._slowest(), self.holdings.oldest
            if oldest is not None and (slowest is None or oldest.since <= slowest.since):
                if oldest is spared:
                    break
                self.holdings.end(oldest)
            elif slowest is not None:
                self._end(slowest)
            else:
                break

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
