"""Room for long replies, reserved before they are received.

A reply that cannot be passed on while it is still coming (a first batch, what is merged or compressed) is received
whole, and then waits here until its client reads it. So its length, known from its header, is reserved before the rest
of it is read from its connection, until the reply to the client counts in its place. While there is no room for it,
nothing more is read. Room comes from clients that read, and from those that are closed because they do not
(`UnreadReplies.close_stalled`); if neither is enough, the operation that waits fails after a while.

No operation waits for itself, or in a circle with others. Operations that have a long reply already come first, and
where there is no room for the next reply of one of them, it is admitted beyond the bound; from then on that operation
waits for its shards and for its client alone, and until it is answered no other goes beyond the bound. What a cursor
held since an earlier request counts as reserved, so the same is true of a request that goes on with it. Replies of one
operation that are waiting together are admitted together, and count together. What many operations wait for in common,
such as a load of the catalog (`daemon.single_flight`), belongs to none of them and does not wait.
"""

from collections.abc import Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

import trio

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor

if TYPE_CHECKING:
    from shardwright.wire.transport.client_connection import ClientConnection
    from shardwright.wire.transport.unread import UnreadReplies

LONG_REPLY_BYTES: Final = 1 << 20
"""What a reply may lack without waiting for room."""

SERVED_CLIENT: Final[ContextVar["ClientConnection | None"]] = ContextVar("served_client", default=None)
"""For whom a task works; tasks that it starts inherit that."""


class _Receiver:
    """A reply the rest of which waits to be received."""

    __slots__ = ("admitted", "client", "size")

    def __init__(self, client: "ClientConnection", size: int) -> None:
        self.client = client
        self.size = size
        self.admitted = trio.Event()


class Reservations:
    """What is reserved for long replies, by client, and who waits for room, in order.

    Attributes:
        total_bytes: reserved now; a part of the total of the `UnreadReplies`.
        refused: how many replies were not received because there was no room.
    """

    def __init__(self, unread: "UnreadReplies") -> None:
        self._unread = unread
        self._waiting: list[_Receiver] = []
        self._beyond_bound: ClientConnection | None = None
        self.total_bytes = 0
        self.refused = 0

    @may_run_in_reactor
    async def reserve(self, size: int) -> None:
        """Wait until so many bytes may be received for the client that the running task works for.

        They count until `release` or `settle`. Of what is no read, no more counts than one client may leave unread: an
        operation that goes on for long, such as a move, does not keep all it has received.

        Raises:
            CommandError: ExceededMemoryLimit, there was no room for half of the bounds' patience (half, since the
                sender waits, too, and for no longer). Writes have happened, and their replies are received even then.
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
        """Admit replies as long as there is room for them; to be called when there may be more of it."""
        while self._waiting:
            client = self._next_client()
            together = [each for each in self._waiting if each.client is client]
            if not self._may_receive(client, self._counted(client, sum(each.size for each in together))):
                return
            self._waiting = [each for each in self._waiting if each.client is not client]
            self._admit(together)

    def take(self, client: "ClientConnection", size_max: int | None = None) -> int:
        """Forget what is reserved for a client, or so much of it.

        Returns:
            How much it was, for the caller to subtract from the total; then others may be admitted.
        """
        taken = client.reserved_bytes if size_max is None else min(client.reserved_bytes, size_max)
        client.reserved_bytes -= taken
        self.total_bytes -= taken
        if client is self._beyond_bound and client.reserved_bytes < LONG_REPLY_BYTES:
            self._beyond_bound = None
        return taken

    def add(self, client: "ClientConnection", size: int) -> None:
        """Count what is in the total already as reserved for a client."""
        client.reserved_bytes += size
        self.total_bytes += size

    def settle(self, client: "ClientConnection", size: int) -> None:
        """Of what a running operation has received, it keeps no more than so many bytes."""
        if client.reserved_bytes > size:
            self._unread.change_total(-self.take(client, client.reserved_bytes - size))

    def release(self, client: "ClientConnection") -> None:
        """The reply has gone out, or never will."""
        self.settle(client, 0)

    def _next_client(self) -> "ClientConnection":
        """For whom something is admitted next: what is under way has to end, for others to have its room."""
        clients = [each.client for each in self._waiting]
        if self._beyond_bound is not None and self._beyond_bound in clients:
            return self._beyond_bound
        return next((each for each in clients if each.reserved_bytes >= LONG_REPLY_BYTES), clients[0])

    def _may_receive(self, client: "ClientConnection", size: int) -> bool:
        """Whether there is room for so many bytes more, or none is needed."""
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
            raise CommandError(ErrorCode.ExceededMemoryLimit, "too much memory is taken by replies that were not read")
        self._waiting.remove(receiver)
        self._admit((receiver,))

    def _admit(self, receivers: Sequence[_Receiver]) -> None:
        for receiver in receivers:
            client = receiver.client
            receiver.admitted.set()
            if not client.stream.is_closed:  # else nobody would release it: the task has outlived its client
                size = self._counted(client, receiver.size)
                self.add(client, size)
                self._unread.change_total(size)

    def _counted(self, client: "ClientConnection", size: int) -> int:
        """How much of so many further bytes counts: a read keeps all that it receives until it is answered."""
        if client.is_interruptible:
            return size
        return min(size, max(0, self._unread.bounds.client_bytes - client.reserved_bytes))
