"""The connection fields of audit events.

They are recorded when a connection is opened, because a closed socket no longer has its addresses.
"""

from typing import Any
from uuid import uuid4

from bson.binary import Binary

from shardwright.wire.transport.client_connection import ClientConnection


class AuditedConnections:
    """The open connections."""

    def __init__(self) -> None:
        self._described: dict[int, dict[str, Any]] = {}

    def note_opened(self, client: ClientConnection) -> None:
        """Record a new connection."""
        self._described[client.id] = {
            "uuid": Binary.from_uuid(uuid4()),
            "local": _own(client),
            "remote": _remote(client),
        }

    def note_closed(self, client: ClientConnection) -> None:
        """Remove a closed connection, after all its events have been written."""
        del self._described[client.id]

    def describe(self, client: ClientConnection) -> dict[str, Any]:
        """Return ``uuid``, the same in all events of a connection, and the addresses ``local`` and ``remote``."""
        return self._described[client.id]


def _own(client: ClientConnection) -> dict[str, Any]:
    own = client.stream.socket.getsockname()
    return {"ip": own[0], "port": own[1]} if isinstance(own, tuple) else {"unix": own}


def _remote(client: ClientConnection) -> dict[str, Any]:
    address = client.peer_address
    return {"unix": client.peer} if address is None else {"ip": address[0], "port": address[1]}
