"""Replies that clients do not read: how much memory they may take, in total and for one client.

A reply that does not fit into the client's socket waits here. What is only passed on waits where it comes from instead:
nothing more is read of it (`wire.transport.relay`), until it has kept a connection that others need for too long.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from wire.transport.strand import in_own_task

if TYPE_CHECKING:
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
        clients_closed: how many clients were closed because it was too much.
    """

    def __init__(self, bounds: UnreadBounds = UnreadBounds()) -> None:
        self.bounds = bounds
        self.total_bytes = 0
        self.clients_closed = 0
        self._waiting: set[_Waiting] = set()

    async def send(self, stream: "FrameStream", rest: memoryview) -> None:
        """Write the rest of a reply, for as long as there is room for it.

        Raises:
            SlowClientError: there is not.
            OSError: the connection broke.
        """
        await in_own_task()
        waiting = _Waiting(len(rest))
        self._waiting.add(waiting)
        self.total_bytes += waiting.size
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
        self.total_bytes += size
        try:
            yield
        finally:
            self.total_bytes -= size

    def has_room_for(self, size: int) -> bool:
        """Whether a client may leave so many bytes unread as things are."""
        return size <= self.bounds.client_bytes and self.total_bytes + size <= self.bounds.total_bytes

    def too_slow(self) -> SlowClientError:
        """Count a client that is closed; the error to raise for it."""
        self.clients_closed += 1
        return SlowClientError("the client does not read its replies")

    def _patience_with(self, waiting: _Waiting) -> float:
        return self.bounds.patience_seconds if waiting.size > self.bounds.client_bytes else float("inf")

    def _make_room(self) -> None:
        """End what has waited longest without being read, until the rest is within the bound."""
        while self.total_bytes > self.bounds.total_bytes:
            slowest = min((each for each in self._waiting if each.size), key=lambda each: each.since)
            slowest.scope.cancel()
            self._resize(slowest, 0)

    def _resize(self, waiting: _Waiting, size: int) -> None:
        if waiting.size:  # else room was made of it already
            self.total_bytes += size - waiting.size
            waiting.size = size


UNREAD_REPLIES: Final = UnreadReplies()
"""Those of this process."""
