"""The mongod that a sidecar stands in front of."""

from collections.abc import Mapping
from typing import Any

from wire.errors import CommandError
from wire.transport.pools import ConnectionPools


class LocalMongod:
    """Where the own mongod is, and a pool of connections for what the daemon itself asks of it.

    Attributes:
        socket_path: its UNIX socket.
        address: ``host:port`` under which its replica set's configuration knows it.
        pool: the daemon's own connections; clients have theirs (`daemon.sidecar.upstream`).
    """

    def __init__(self, pools: ConnectionPools, socket_path: str, address: str) -> None:
        self.socket_path = socket_path
        self.address = address
        self.pool = pools[socket_path]

    async def command(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run a command and return its decoded reply.

        Raises:
            CommandError: the reply says ``ok: 0``.
            BackendError: mongod does not answer.
        """
        return await self.pool.command(db, command)

    async def write(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run a write command; returns its reply.

        Raises:
            CommandError: the command failed, one of its items did, or its write concern could not be satisfied.
            BackendError: mongod does not answer.
        """
        reply = await self.command(db, command)
        for failure in (*reply.get("writeErrors", ()), *filter(None, (reply.get("writeConcernError"),))):
            raise CommandError.from_reply(failure)
        return reply
