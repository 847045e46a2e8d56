"""Memory held for clients between two requests: batches that a cursor has received and not yet returned.

It counts towards the total of `UnreadReplies` and its limit. While a request of the client uses it, it is part of that
request's reservation (`wire.transport.reservations`) and cannot be discarded.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import trio

from shardwright.wire.transport.receivers import ReceivingClient
from shardwright.wire.transport.reservations import Reservations
from shardwright.wire.transport.unread_total import UnreadTotal


class Holding(ABC):
    """Memory held for one client; subclasses define what for.

    Attributes:
        size: bytes; 0 while a request uses it.
        since: when it was last read, on trio's clock.
    """

    __slots__ = ("since", "size")

    def __init__(self) -> None:
        self.size = 0
        self.since = 0.0

    @abstractmethod
    def end(self) -> None:
        """Discard it to make room for others."""


class Holdings:
    """All holdings, in the order in which they were last read.

    Args:
        unread: what they count in.
        reservations: what they become while a request goes on with them.
        make_room_beside: ends others, or none, so that there is room for one.

    Attributes:
        total_bytes: their total size; part of the total of `UnreadReplies`.
        ended: how many were discarded to make room for others.
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
        """Hold some bytes from the end of a request until the next one. If the limit is exceeded, discard the oldest.

        Args:
            holding: what is held.
            size: its size in bytes.
            client: the client of the request, whose reservation shrinks accordingly.
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
        """Let a request of this client use it: from now on it counts as reserved for the request."""
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
