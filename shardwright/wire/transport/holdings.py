"""What is kept for clients between two of their requests: batches that a cursor has received and not yet returned.

It counts in the total of `UnreadReplies`, whose bound holds for it too. While a request of its client goes on with it,
it is part of what is reserved for that request (`wire.transport.reservations`), and cannot be ended.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from shardwright.wire.transport.client_connection import ClientConnection
    from shardwright.wire.transport.unread import UnreadReplies


class Holding(ABC):
    """What is kept for one client; subclasses say what it is.

    Attributes:
        size: bytes; 0 while a request goes on with it.
        since: since when nobody has read it, on trio's clock.
    """

    __slots__ = ("since", "size")

    def __init__(self) -> None:
        self.size = 0
        self.since = 0.0

    @abstractmethod
    def end(self) -> None:
        """Give it up, to make room for others."""


class Holdings:
    """All of them, in the order in which they were last read.

    Attributes:
        total_bytes: how much it is; a part of the total of the `UnreadReplies`.
        ended: how many were given up to make room for others.
    """

    def __init__(self, unread: "UnreadReplies") -> None:
        self._unread = unread
        self._idle: dict[Holding, None] = {}
        self.total_bytes = 0
        self.ended = 0

    def keep(self, holding: Holding, size: int, client: "ClientConnection | None") -> None:
        """A request is over: so many bytes stay until the next one. What is beyond the bound is ended, oldest first.

        Args:
            holding: what is kept.
            size: its bytes.
            client: whose request it was; less is reserved for it from now on.
        """
        if not size:
            return
        holding.size, holding.since = size, trio.current_time()
        self._idle[holding] = None
        self.total_bytes += size
        moved = 0 if client is None else self._unread.reservations.take(client, size)
        self._unread.change_total(size - moved)
        self._unread.make_room(spared=holding)
        self._unread.reservations.admit_waiting()

    def resume(self, holding: Holding, client: "ClientConnection | None") -> None:
        """A request of this client goes on with it: it counts as reserved for the request."""
        size = self._forget(holding)
        if size and client is not None and not client.stream.is_closed:
            self._unread.reservations.add(client, size)
        else:
            self._unread.change_total(-size)

    def drop(self, holding: Holding) -> None:
        """It is no longer there."""
        size = self._forget(holding)
        if size:
            self._unread.change_total(-size)

    @property
    def oldest(self) -> Holding | None:
        """The one that has not been read for longest."""
        return next(iter(self._idle), None)

    def end(self, holding: Holding) -> None:
        """Give it up to make room."""
        self.ended += 1
        self.drop(holding)
        holding.end()

    def _forget(self, holding: Holding) -> int:
        size, holding.size = holding.size, 0
        if size:
            del self._idle[holding]
            self.total_bytes -= size
        return size
