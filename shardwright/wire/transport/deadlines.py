"""Time limits of operations, kept apart from them so that an operation with a limit can still run in the reactor.

A cancel scope needs a task. Here one task sleeps until the earliest deadline of all clients and interrupts the
operations that have not ended by then. Setting and clearing a deadline are a few attribute accesses.
"""

import math

import trio

from shardwright.wire.transport.client_connection import ClientConnection


class Deadlines:
    """The deadlines of operations that are running, at most one for each client."""

    def __init__(self) -> None:
        self._clients: set[ClientConnection] = set()
        self._next = math.inf
        self._is_earlier = trio.Event()

    def set(self, client: ClientConnection, seconds: float) -> None:
        """Interrupt the client's running operation after some seconds, unless `clear` is called first."""
        client.deadline = deadline = trio.current_time() + seconds
        self._clients.add(client)
        if deadline < self._next:
            self._next = deadline
            self._is_earlier.set()

    def clear(self, client: ClientConnection) -> None:
        """Remove the time limit of the client's operation."""
        # The client stays in the set until the task next wakes: its next operation probably sets a deadline again.
        client.deadline = math.inf

    def forget(self, client: ClientConnection) -> None:
        """Forget a disconnected client at once, even if its last deadline is far away."""
        self._clients.discard(client)

    async def run(self) -> None:
        """Interrupt operations at their deadlines, until cancelled."""
        while True:
            self._is_earlier = trio.Event()
            with trio.move_on_at(self._next):
                await self._is_earlier.wait()
                continue
            self._interrupt_due(trio.current_time())

    def _interrupt_due(self, now: float) -> None:
        for client in [each for each in self._clients if each.deadline <= now]:
            client.deadline = math.inf
            client.on_deadline()
        self._clients = {each for each in self._clients if each.deadline < math.inf}
        self._next = min((each.deadline for each in self._clients), default=math.inf)
