"""The relay: one connection to the mongod for each client, on which the client's own bytes travel.

Sessions, cursors, transactions, exhaust replies and, where it is on, authentication belong to a connection, so they
keep their meaning when every client has a connection of its own. Nothing is rewritten on the way: a request keeps its
id, and its reply already names it.
"""

from collections.abc import Callable, Mapping
from typing import Any

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.wire.errors import CommandError
from shardwright.wire.message import EXHAUST_ALLOWED, MORE_TO_COME
from shardwright.wire.transport.client import Connection
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.relay import Relay
from shardwright.wire.transport.request_loop import may_run_in_reactor
from shardwright.wire.transport.stream import FrameStream


class _AnswerRelay(Relay):
    """Passes a long answer on unless something speaks against it when it begins."""

    def __init__(self, receiver: FrameStream, may_begin: Callable[[], bool] | None) -> None:
        super().__init__(receiver)
        self._may_begin = may_begin

    def begin(self, beginning: bytes) -> tuple[bytes, int] | None:
        """See `Relay`."""
        if self._may_begin is not None and not self._may_begin():
            return None
        return super().begin(beginning)


class Upstream:
    """A client's connection to the mongod, opened when first needed.

    Attributes:
        connection_id: what mongod calls the connection, once a ``hello`` told.
    """

    __slots__ = ("_client", "_connection", "_mongod", "connection_id")

    def __init__(self, mongod: LocalMongod, client: ClientConnection) -> None:
        self._mongod = mongod
        self._client = client
        self._connection: Connection | None = None
        self.connection_id: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is a connection yet."""
        return self._connection is not None

    @may_run_in_reactor
    async def open(self) -> None:
        """Connect now, so that nothing has to be waited for when a request is sent.

        Raises:
            BackendError: mongod could not be reached.
        """
        await self._open()

    @may_run_in_reactor
    async def pass_on(self, frame: bytes, flags: int, may_begin: Callable[[], bool] | None = None) -> bytes | None:
        """As `forward`; but a long answer goes to the client while it is still coming, and None is returned for it.

        Args:
            frame: as `forward`.
            flags: as `forward`.
            may_begin: asked when a long answer has begun to come; it is received as a whole and returned if not.

        Raises:
            BackendError: as `forward`.
            CommandError: as `forward`.
        """
        client = self._client
        if flags & (MORE_TO_COME | EXHAUST_ALLOWED) or not client.is_answered_verbatim:
            return await self.forward(frame, flags)
        connection = self._connection or await self._open()
        try:
            return await connection.exchange_for(frame, _AnswerRelay(client.stream, may_begin))
        except CommandError:
            client.is_finished = True  # no room for the answer: the connection that is the client's alone was closed
            raise

    @may_run_in_reactor
    async def forward(self, frame: bytes, flags: int) -> bytes | None:
        """Send a client's request to the mongod; returns the frame to answer with, None for a request without answer.

        Args:
            frame: the whole OP_MSG.
            flags: its flag bits.

        Raises:
            BackendError: mongod could not be reached or broke the connection; the client's connection has to go too.
            CommandError: there is no room for a long answer; the client's connection ends with this reply.
        """
        connection = self._connection or await self._open()
        if not flags & (MORE_TO_COME | EXHAUST_ALLOWED):
            try:
                return await connection.exchange(frame)
            except CommandError:
                self._client.is_finished = True  # as above
                raise
        if flags & MORE_TO_COME:
            await connection.send(frame)
            return None
        return await self._stream(connection, frame)

    @may_run_in_reactor
    async def command(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run a command of the daemon's own on the client's connection, so that it acts as the client.

        Raises:
            CommandError: the reply says ``ok: 0``.
            BackendError: as `forward`.
        """
        connection = self._connection or await self._open()
        return await connection.command(db, command)

    def close(self) -> None:
        """Close the connection; mongod ends what runs on it as if the client itself had left."""
        if self._connection is not None:
            self._connection.close()

    @may_run_in_reactor
    async def _open(self) -> Connection:
        self._connection = await Connection.open(self._mongod.socket_path)
        return self._connection

    @may_run_in_reactor
    async def _stream(self, connection: Connection, frame: bytes) -> bytes:
        """Pass on exhaust replies until the one that says it is the last, which is returned."""
        reply = await connection.exchange(frame)
        try:
            while reply[16] & MORE_TO_COME:
                await self._client.send(reply)
                reply = await connection.receive()
        except BaseException:
            connection.close()  # mongod would go on sending to the next borrower
            self._client.is_finished = True
            raise
        return reply
