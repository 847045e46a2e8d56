"""The connections of clients, for reports, and quiesce mode.

For a while before it ends, the router notifies clients waiting on hello that it is shutting down.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import trio
from bson.objectid import ObjectId

from shardwright.wire.hello import TopologyVersion
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.server import Server, Traffic


@dataclass(frozen=True, slots=True)
class ConnectionStatistics:
    """Connections of clients: open, active and available now; created since the start.

    Attributes:
        streamed_hellos: those that get exhaust replies to ``hello``.
        streamed_is_masters: those that get exhaust replies to ``isMaster``.
    """

    current: int
    active: int
    available: int
    created: int
    streamed_hellos: int
    streamed_is_masters: int


class ServedClients:
    """The clients of a router; there are none before they are served."""

    def __init__(self) -> None:
        self._server: Server | None = None
        self._streamed: Counter[bool] = Counter()

    def begin(self, server: Server) -> None:
        """Serving begins."""
        self._server = server

    @property
    def connections(self) -> Collection[ClientConnection]:
        """All connections; the ``state`` of each is the operation that it is running, None if it is idle."""
        return () if self._server is None else self._server.clients

    @contextmanager
    def streaming(self, command: str) -> Iterator[None]:
        """Count a connection that gets exhaust replies to ``hello``, or to an older name of it, in this block."""
        is_hello = command == "hello"
        self._streamed[is_hello] += 1
        try:
            yield
        finally:
            self._streamed[is_hello] -= 1

    def statistics(self) -> ConnectionStatistics | None:
        """The current numbers, None before clients are served."""
        server = self._server
        if server is None:
            return None
        current = len(server.clients)
        return ConnectionStatistics(
            current=current,
            active=sum(client.is_busy for client in server.clients),
            available=server.connections_max - current,
            created=server.connections_created,
            streamed_hellos=self._streamed[True],
            streamed_is_masters=self._streamed[False],
        )

    def traffic(self) -> Traffic:
        """The bytes of all clients since the start."""
        return Traffic() if self._server is None else self._server.traffic()

    def tls_versions(self) -> Mapping[str, int]:
        """Connections since the start by their version of TLS, as ``TLSv1.3``."""
        return {} if self._server is None else self._server.tls_versions


class Quiesce:
    """Whether the router is shutting down.

    Attributes:
        has_begun: whether it is.
        topology_version: changes when that begins.
    """

    def __init__(self) -> None:
        self.has_begun = False
        self.topology_version = TopologyVersion(ObjectId(), 0)
        self._ends = 0.0
        self._begun = trio.Event()

    def begin(self, seconds: float) -> None:
        """Begin the shutdown.

        Args:
            seconds: how long running operations may continue.
        """
        self.has_begun = True
        self._ends = trio.current_time() + seconds
        self.topology_version = self.topology_version.bumped()
        self._begun.set()

    @property
    def remaining_ms(self) -> int:
        """How much of that time is left."""
        return max(0, int((self._ends - trio.current_time()) * 1000))

    @property
    def waiting(self) -> int:
        """How many tasks are in `wait_begun`."""
        return self._begun.statistics().tasks_waiting

    async def wait_begun(self) -> None:
        """Return when the shutdown has begun, and `topology_version` has changed."""
        await self._begun.wait()
