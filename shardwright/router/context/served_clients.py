"""The connections of clients, for reports."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.server import Server
from shardwright.wire.transport.traffic import Traffic


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
