"""Replies that clients have not read, and the limits on their memory, in total and for one client.

A reply that does not fit into the client's socket waits here. A reply that is only forwarded waits at its source
instead: nothing more of it is read (`Relay`). The exception is a reply that has held a connection for
too long. Replies that are received whole first wait for room (`wire.transport.reservations`).

A `Holding` is memory held for a client between two requests: batches that a cursor has received and not yet returned.
It counts towards the total. While a request of the client uses it, it is part of that request's reservation and cannot
be discarded.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

import trio

from shardwright.wire.transport.reactor import in_own_task, may_run_in_reactor
from shardwright.wire.transport.reservations import Receiver, ReceivingClient, Reservations, UnreadBounds, UnreadTotal


class Holding(ABC):
    """Memory held for one client; subclasses define its purpose.

    ``size`` is 0 while a request uses it; ``since`` is when it was last read, on trio's clock.
    """

    __slots__ = ("since", "size")

    def __init__(self) -> None:
        self.size = 0
        self.since = 0.0

    @abstractmethod
    def end(self) -> None:
        """Discard the memory to make room for others."""


class Holdings:
    """All holdings, in the order in which they were last read.

    Args:
        reservations: they are converted into reservations while a request uses them.
        make_room_beside: ends others, or none, so that there is room for one.

    Attributes:
        total_bytes: their total size; part of the total of `UnreadReplies`.
        ended: the number discarded to make room for others.
    """

    def __init__(
        self, unread: UnreadTotal, reservations: Reservations, make_room_beside: Callable[[Holding], None]
    ) -> None:
        self._unread = unread
        self._reservations = reservations
        self._make_room_beside = make_room_beside
        self._idle: dict[Holding, None] = {}
        self.total_bytes = 0
        self.ended = 0

    def keep(self, holding: Holding, size: int, client: ReceivingClient | None) -> None:
        """Hold ``size`` bytes from the end of a request until the next one; beyond the limit, discard the oldest.

        The reservation of the client's request shrinks accordingly.
        """
        if not size:
            return
        holding.size, holding.since = size, trio.current_time()
        self._idle[holding] = None
        self.total_bytes += size
        moved = 0 if client is None else self._reservations.take(client, size)
        self._unread.change_total(size - moved)
        self._make_room_beside(holding)
        self._reservations.admit_waiting()

    def resume(self, holding: Holding, client: ReceivingClient | None) -> None:
        """Convert a holding into a reservation of the client's new request."""
        size = self._forget(holding)
        if size and client is not None and not client.stream.is_closed:
            self._reservations.add(client, size)
        else:
            self._unread.change_total(-size)

    def drop(self, holding: Holding) -> None:
        """Stop counting a holding that no longer exists."""
        size = self._forget(holding)
        if size:
            self._unread.change_total(-size)

    @property
    def oldest(self) -> Holding | None:
        """The holding that has not been read for longest."""
        return next(iter(self._idle), None)

    def end(self, holding: Holding) -> None:
        """Discard a holding to make room."""
        self.ended += 1
        self.drop(holding)
        holding.end()

    def _forget(self, holding: Holding) -> int:
        size, holding.size = holding.size, 0
        if size:
            del self._idle[holding]
            self.total_bytes -= size
        return size


PROGRESS_BYTES: Final = 1 << 18
"""Progress limit: a client that reads less in the time allowed counts as one that reads nothing."""


class SlowClientError(OSError):
    """A client that does not read its replies and would exceed its memory limit; its connection has to be closed."""


class _Waiting:
    """The unread rest of one reply.

    ``since`` is when the client last made progress by `PROGRESS_BYTES`, on trio's clock. Cancelling ``scope`` makes
    room.
    """

    __slots__ = ("_size_then", "scope", "since", "size")

    def __init__(self, size: int) -> None:
        self.size = self._size_then = size
        self.since = trio.current_time()
        self.scope = trio.CancelScope()

    def note_progress(self, size: int) -> None:
        """Record that ``size`` bytes are left."""
        if self._size_then - size >= PROGRESS_BYTES:
            self._size_then = size
            self.since = trio.current_time()


class UnreadReplies(UnreadTotal):
    """The replies that the clients of this process have not read.

    Attributes:
        total_bytes: their current size, including reservations and holdings.
        holdings: memory that cursors hold between two requests.
        clients_closed: the number of clients disconnected because of the limits.
    """

    def __init__(self, bounds: UnreadBounds) -> None:
        super().__init__(bounds)
        self.peak_bytes = 0
        self.clients_closed = 0
        self.reservations = Reservations(self)
        self.holdings = Holdings(self, self.reservations, self._make_room_beside)
        self._waiting: set[_Waiting] = set()

    @may_run_in_reactor
    async def send(self, stream: Receiver, rest: memoryview, client: ReceivingClient | None = None) -> None:
        """Write the rest of a reply, which did not fit into the socket, while the limits permit it.

        The client's reservation is released, because from now on the rest counts.

        Raises:
            SlowClientError: a limit was exceeded.
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
        """Count bytes that are received in the block, because many replies may be arriving at the same time."""
        self.change_total(size)
        try:
            yield
        finally:
            self.change_total(-size)

    def change_total(self, by: int) -> None:
        """Change the total; if it shrinks, admit operations that wait for room."""
        self.total_bytes += by
        if by > 0:
            self.peak_bytes = max(self.peak_bytes, self.total_bytes)
        else:
            self.reservations.admit_waiting()

    def has_room_for(self, size: int) -> bool:
        """Whether a client may currently leave ``size`` bytes unread."""
        return size <= self.bounds.client_bytes and self.total_bytes + size <= self.bounds.total_bytes

    def too_slow(self) -> SlowClientError:
        """Count a client that will be disconnected; return the error to raise for it."""
        self.clients_closed += 1
        return SlowClientError("the client does not read its replies")

    def _patient_until(self, waiting: _Waiting) -> float:
        bounds = self.bounds
        return waiting.since + bounds.patience_seconds if waiting.size > bounds.client_bytes else math.inf

    def close_stalled(self) -> bool:
        """Discard the longest idle reply, or else the longest idle cursor; return whether there was one.

        A reply must have been idle for `UnreadBounds.stalled_seconds`, a cursor for ``patience_seconds``.
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
        """Discard the longest idle replies and holdings, until the total is within the limit.

        ``spared`` is never discarded; once it is the oldest, nothing else is discarded either.
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

    def _make_room_beside(self, holding: Holding) -> None:
        self.make_room(spared=holding)

    def _slowest(self) -> _Waiting | None:
        return min((each for each in self._waiting if each.size), key=lambda each: each.since, default=None)

    def _end(self, waiting: _Waiting) -> None:
        waiting.scope.cancel()
        self._resize(waiting, 0)

    def _resize(self, waiting: _Waiting, size: int) -> None:
        if waiting.size:  # otherwise it has already been discarded
            change, waiting.size = size - waiting.size, size
            self.change_total(change)


class RelayedClient(Protocol):
    """The client that gets a forwarded reply (`wire.transport.client_connection.ClientConnection`)."""

    @property
    def stream(self) -> Receiver:
        """The stream for its replies."""

    @property
    def unread_replies(self) -> UnreadReplies:
        """Counts the bytes that it has not read."""


class Relay:
    """Forwarder of a reply to a client; subclasses change its beginning and end.

    ``is_receiver_gone`` tells whether the receiver's connection broke, rather than the sender's.
    """

    def __init__(self, client: RelayedClient) -> None:
        self.client = client
        self.receiver = client.stream
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
        unread_replies = self.client.unread_replies
        if not unread_replies.has_room_for(size):
            self.is_receiver_gone = True
            raise unread_replies.too_slow()
        with unread_replies.reserved(size):
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
