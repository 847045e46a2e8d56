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
        streamed_hellos: connections that receive exhaust replies to ``hello``.
        streamed_is_masters: connections that receive exhaust replies to ``isMaster``.
    """

    current: int
    active: int
    available: int
    created: int
    streamed_hellos: int
    streamed_is_masters: int


class ServedClients:
    """The clients of a router; empty until it serves clients."""

    def __init__(self) -> None:
        self._server: Server | None = None
        self._streamed: Counter[bool] = Counter()

    def begin(self, server: Server) -> None:
        """Begin to report the clients of a server."""
        self._server = server

    @property
    def connections(self) -> Collection[ClientConnection]:
        """All connections. The ``state`` of each is its running operation, None if it is idle."""
        return () if self._server is None else self._server.clients

    @contextmanager
    def streaming(self, command: str) -> Iterator[None]:
        """Count a connection that receives exhaust replies to ``hello`` or an older name of it in this block."""
        is_hello = command == "hello"
        self._streamed[is_hello] += 1
        try:
            yield
        finally:
            self._streamed[is_hello] -= 1

    def statistics(self) -> ConnectionStatistics | None:
        """Return the current numbers, None before clients are served."""
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
        """Return the bytes of all clients since the start."""
        return Traffic() if self._server is None else self._server.traffic()

    def tls_versions(self) -> Mapping[str, int]:
        """Return the connections since the start by TLS version, such as ``TLSv1.3``."""
        return {} if self._server is None else self._server.tls_versions


class Quiesce:
    """The quiesce mode of a router that is shutting down.

    Attributes:
        topology_version: changes when the shutdown begins.
    """

    def __init__(self) -> None:
        self.has_begun = False
        self.topology_version = TopologyVersion(ObjectId(), 0)
        self._ends = 0.0
        self._begun = trio.Event()

    def begin(self, seconds: float) -> None:
        """Begin the shutdown.

        Args:
            seconds: the grace period for running operations.
        """
        self.has_begun = True
        self._ends = trio.current_time() + seconds
        self.topology_version = self.topology_version.bumped()
        self._begun.set()

    @property
    def remaining_ms(self) -> int:
        """The rest of the grace period."""
        return max(0, int((self._ends - trio.current_time()) * 1000))

    @property
    def waiting(self) -> int:
        """The number of tasks in `wait_begun`."""
        return self._begun.statistics().tasks_waiting

    async def wait_begun(self) -> None:
        """Wait until the shutdown has begun, and `topology_version` has changed."""
        await self._begun.wait()
