"""What events tell of the connection on which they happened.

It is noted when a connection is opened, because a closed socket does not tell it any more.
"""

from typing import Any
from uuid import uuid4

from bson.binary import Binary

from shardwright.wire.transport.client_connection import ClientConnection


class AuditedConnections:
    """The connections that are open."""

    def __init__(self) -> None:
        self._described: dict[int, dict[str, Any]] = {}

    def note_opened(self, client: ClientConnection) -> None:
        """A client has connected."""
        self._described[client.id] = {
            "uuid": Binary.from_uuid(uuid4()),
            "local": _own(client),
            "remote": _remote(client),
        }

    def note_closed(self, client: ClientConnection) -> None:
        """A client has gone, and all events of its connection have been written."""
        del self._described[client.id]

    def describe(self, client: ClientConnection) -> dict[str, Any]:
        """``uuid``, the same in all events of a connection, and ``local`` and ``remote``, its addresses."""
        return self._described[client.id]


def _own(client: ClientConnection) -> dict[str, Any]:
    own = client.stream.socket.getsockname()
    return {"ip": own[0], "port": own[1]} if isinstance(own, tuple) else {"unix": own}


def _remote(client: ClientConnection) -> dict[str, Any]:
    address = client.peer_address
    return {"unix": client.peer} if address is None else {"ip": address[0], "port": address[1]}
