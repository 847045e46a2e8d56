"""What a server asks of the daemon that it serves clients for."""

from typing import Protocol

from shardwright.wire.request import Request
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.request_loop import may_run_in_reactor


class Handler(Protocol):
    """What a daemon does for its clients."""

    @may_run_in_reactor
    async def handle(self, client: ClientConnection, request: Request) -> bytes | None:
        """Answer one request with the frame of the reply, or None if there is nothing (more) to send.

        Called in the reactor, if it is running: code that waits for anything but sockets must call `in_own_task` first.

        Raises:
            CommandError: converted to the ``ok: 0`` reply.
        """

    def connection_opened(self, client: ClientConnection) -> None:
        """A client has connected."""

    def connection_closed(self, client: ClientConnection) -> None:
        """A client has disconnected; release its resources."""
