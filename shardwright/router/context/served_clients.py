"""The connections of clients, for reports."""

from collections.abc import Collection
from dataclasses import dataclass

from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.server import Server


@dataclass(frozen=True, slots=True)
class ConnectionStatistics:
    """Connections of clients: open, active and available now; created and refused since the start."""

    current: int
    active: int
    available: int
    created: int
    refused: int


class ServedClients:
    """The clients of a router; there are none before they are served."""

    def __init__(self) -> None:
        self._server: Server | None = None

    def begin(self, server: Server) -> None:
        """Serving begins."""
        self._server = server

    @property
    def connections(self) -> Collection[ClientConnection]:
        """All connections; the ``state`` of each is the operation that it is running, None if it is idle."""
        return () if self._server is None else self._server.clients

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
            refused=server.connections_refused,
        )
