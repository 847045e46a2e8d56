"""Memory for long replies, reserved before they are received.

Some replies cannot be forwarded while they are arriving: a first batch, a merged or compressed reply. Such a reply is
received whole, and then waits in this process until its client reads it. Its header gives its length. That length is
reserved before the rest is read from its connection, and stays reserved until the client's reply has been sent or is
counted as unread. Until there is room, nothing more is read. Room is freed by clients that read, and by disconnecting
stalled ones (`UnreadReplies.close_stalled`). If that is not enough, the waiting operation eventually fails.

Operations cannot deadlock. Those that already have a long reply come first. If there is no room for the next reply of
one of them, that reply is received beyond the limit. From then on that operation waits only for its shards and its
client, and until it is answered no other operation may exceed the limit. Memory held by a cursor since an earlier
request counts as reserved, so the same applies to a request that continues with the cursor. Replies of one operation
that wait at the same time are admitted together, and count together. Work shared by many operations, such as a load of
the catalog (`daemon.single_flight`), belongs to none of them and does not wait.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Protocol

import trio

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.transport.reactor import in_own_task, may_run_in_reactor


class Receiver(Protocol):
    """The stream for replies, for example a `wire.transport.stream.FrameStream`.

    ``backlog`` is the rest of a reply, to be written before anything else.
    """

    backlog: memoryview | None

    @property
    def is_closed(self) -> bool:
        """Whether the stream is closed, so that nothing can be written."""

    def send_now(self, frame: bytes | memoryview) -> memoryview | None:
        """Write as much as possible without waiting; return the rest, or None."""

    async def send_some(self, rest: memoryview) -> memoryview:
        """Write part of the rest as soon as the peer has read something; return the remainder."""

    def break_off(self) -> None:
        """Make every later read and write fail."""


class ReceivingClient(Protocol):
    """A client that waits for a reply, for example a `wire.transport.client_connection.ClientConnection`.

    ``reserved_bytes`` is the memory reserved for long replies to its running request.
    """

    reserved_bytes: int

    @property
    def stream(self) -> Receiver:
        """The stream for its replies."""

    @property
    def is_interruptible(self) -> bool:
        """Whether the running operation may be cancelled."""


@dataclass(frozen=True, slots=True)
class UnreadBounds:
    """Limits on the memory used by unread replies.

    Attributes:
        total_bytes: limit for all clients. Beyond it, the client that has read nothing for longest is disconnected, or
            its cursor closed.
        client_bytes: limit for one client. A client beyond it is disconnected if it reads nothing for
            `patience_seconds`.
        patience_seconds: also the time for which a client that reads nothing may hold a connection to a shard.
    """

    total_bytes: int = 256 << 20
    client_bytes: int = 32 << 20
    patience_seconds: float = 10.0

    @property
    def stalled_seconds(self) -> float:
        """Time without reading after which a client is disconnected if others are waiting for room."""
        return self.patience_seconds / 5

    @property
    def relay_seconds(self) -> float:
        """Time for which a client may hold a connection to a shard in total, for one reply that it reads slowly."""
        return 3 * self.patience_seconds


class UnreadTotal(ABC):
    """The total size of all kinds of unread replies, including reservations and holdings."""

    def __init__(self, bounds: UnreadBounds) -> None:
        self.bounds = bounds
        self.total_bytes = 0

    @abstractmethod
    def change_total(self, by: int) -> None:
        """Change the total; if it shrinks, admit operations that wait for room."""

    @abstractmethod
    def close_stalled(self) -> bool:
        """Discard the longest idle reply or holding, if it is old enough; return whether there was one."""


LONG_REPLY_BYTES: Final = 1 << 20
"""Size from which a reply waits for room, counting the bytes still to be received."""

SERVED_CLIENT: Final[ContextVar[ReceivingClient | None]] = ContextVar("served_client", default=None)
"""The client for which a task works; child tasks inherit it."""


class _Receiver:
    """A reply whose remaining bytes are waiting to be received."""

    __slots__ = ("admitted", "client", "size")

    def __init__(self, client: ReceivingClient, size: int) -> None:
        self.client = client
        self.size = size
        self.admitted = trio.Event()


class Reservations:
    """The reservations for long replies, by client, and the queue of replies that wait for room.

    Attributes:
        total_bytes: currently reserved bytes; part of the total of `UnreadReplies`.
        refused: the number of replies not received for lack of room.
    """

    def __init__(self, unread: UnreadTotal) -> None:
        self._unread = unread
        self._waiting: list[_Receiver] = []
        self._beyond_bound: ReceivingClient | None = None
        self.total_bytes = 0
        self.refused = 0

    @may_run_in_reactor
    async def reserve(self, size: int) -> None:
        """Wait until ``size`` bytes may be received for the client of the current task.

        They count until `release` or `settle`. An operation that is not a read counts for at most the limit for one
        client's unread bytes: a long operation, such as a move, does not keep everything that it has received.

        Raises:
            CommandError: ExceededMemoryLimit, no room was freed within half of ``patience_seconds``; the sender waits
                no longer than the whole, so this process must fail first. Writes have already been executed, so their
                replies are received in any case.
        """
        await in_own_task()
        client = SERVED_CLIENT.get()
        if client is None:
            return
        receiver = _Receiver(client, size)
        self._waiting.append(receiver)
        try:
            self.admit_waiting()
            await self._wait_for_room(receiver)
        finally:
            if receiver in self._waiting:
                self._waiting.remove(receiver)
                self.admit_waiting()

    def admit_waiting(self) -> None:
        """Admit waiting replies while there is room; must be called whenever room may have been freed."""
        while self._waiting:
            client = self._next_client()
            together = [each for each in self._waiting if each.client is client]
            if not self._may_receive(client, self._counted(client, sum(each.size for each in together))):
                return
            self._waiting = [each for each in self._waiting if each.client is not client]
            self._admit(together)

    def take(self, client: ReceivingClient, size_max: int | None = None) -> int:
        """Remove a client's reservation, or at most ``size_max`` bytes of it; return the number of bytes removed.

        The caller must subtract it from the total; then others may be admitted.
        """
        taken = client.reserved_bytes if size_max is None else min(client.reserved_bytes, size_max)
        client.reserved_bytes -= taken
        self.total_bytes -= taken
        if client is self._beyond_bound and client.reserved_bytes < LONG_REPLY_BYTES:
            self._beyond_bound = None
        return taken

    def add(self, client: ReceivingClient, size: int) -> None:
        """Count bytes that are already part of the total as reserved for a client."""
        client.reserved_bytes += size
        self.total_bytes += size

    def settle(self, client: ReceivingClient, size: int) -> None:
        """Reduce a client's reservation to ``size``, the bytes that its running operation still keeps."""
        if client.reserved_bytes > size:
            self._unread.change_total(-self.take(client, client.reserved_bytes - size))

    def release(self, client: ReceivingClient) -> None:
        """Release a client's reservation: the reply has been sent, or never will be."""
        self.settle(client, 0)

    def _next_client(self) -> ReceivingClient:
        """Choose the client to admit next: running operations first, since they must finish to free their room."""
        clients = [each.client for each in self._waiting]
        if self._beyond_bound is not None and self._beyond_bound in clients:
            return self._beyond_bound
        return next((each for each in clients if each.reserved_bytes >= LONG_REPLY_BYTES), clients[0])

    def _may_receive(self, client: ReceivingClient, size: int) -> bool:
        """Whether there is room for ``size`` more bytes, or none is needed."""
        total = self._unread.total_bytes
        if not (size and total) or total + size <= self._unread.bounds.total_bytes:
            return True
        if client.reserved_bytes < LONG_REPLY_BYTES or self._beyond_bound not in (None, client):
            return False
        self._beyond_bound = client
        return True

    async def _wait_for_room(self, receiver: _Receiver) -> None:
        bounds = self._unread.bounds
        with trio.move_on_after(bounds.patience_seconds / 2):
            while not receiver.admitted.is_set():
                while not receiver.admitted.is_set() and self._unread.close_stalled():
                    pass
                with trio.move_on_after(bounds.stalled_seconds):
                    await receiver.admitted.wait()
        if receiver.admitted.is_set():
            return
        if receiver.client.is_interruptible:
            self.refused += 1
            raise CommandError(ErrorCode.ExceededMemoryLimit, "too much memory is used by unread replies")
        self._waiting.remove(receiver)
        self._admit((receiver,))

    def _admit(self, receivers: Sequence[_Receiver]) -> None:
        for receiver in receivers:
            client = receiver.client
            receiver.admitted.set()
            if not client.stream.is_closed:  # the task has outlived its client, so nothing would release it
                size = self._counted(client, receiver.size)
                self.add(client, size)
                self._unread.change_total(size)

    def _counted(self, client: ReceivingClient, size: int) -> int:
        """Return how many of ``size`` further bytes count: a read keeps everything it receives until it is answered."""
        if client.is_interruptible:
            return size
        return min(size, max(0, self._unread.bounds.client_bytes - client.reserved_bytes))
