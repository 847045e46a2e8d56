"""The memory used by unread replies, and its limits."""

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UnreadBounds:
    """Limits on the memory used by unread replies.

    Attributes:
        total_bytes: limit for all clients; if it is exceeded, the client that has read nothing for longest is
            disconnected, or its cursor closed.
        client_bytes: limit for one client; it is disconnected if it exceeds this and reads nothing for
            `patience_seconds`.
        patience_seconds: also how long a client that reads nothing may hold a connection to a shard.
    """

    total_bytes: int = 256 << 20
    client_bytes: int = 32 << 20
    patience_seconds: float = 10.0

    @property
    def stalled_seconds(self) -> float:
        """How long a client may read nothing before it is disconnected if others are waiting for room."""
        return self.patience_seconds / 5

    @property
    def relay_seconds(self) -> float:
        """How long a client may hold a connection to a shard in total, for one reply that it reads slowly."""
        return 3 * self.patience_seconds


class UnreadTotal(ABC):
    """The total to which all kinds of unread replies count.

    Attributes:
        bounds: the limits.
        total_bytes: the current size, including reservations and holdings.
    """

    def __init__(self, bounds: UnreadBounds) -> None:
        self.bounds = bounds
        self.total_bytes = 0

    @abstractmethod
    def change_total(self, by: int) -> None:
        """Change the total; if it shrinks, operations that wait for room are admitted."""

    @abstractmethod
    def close_stalled(self) -> bool:
        """Discard what has been idle longest, if that is long enough; returns whether there was anything."""
