"""A separate connection to the mongod for each client, on which the client's bytes are forwarded.

Sessions, cursors, transactions, exhaust replies and, if enabled, authentication belong to a connection. They keep their
meaning if every client has a separate one. A request keeps its id, which the reply names.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.wire.cursor_batch import id_in_reply
from shardwright.wire.errors import CommandError
from shardwright.wire.message import EXHAUST_ALLOWED, MORE_TO_COME, OpMsg, op_msg
from shardwright.wire.request import Request
from shardwright.wire.transport.client import Begun, Connection
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.relay import Relay
from shardwright.wire.transport.request_loop import may_run_in_reactor

if TYPE_CHECKING:
    from shardwright.daemon.user_names import UserName


class _AnswerRelay(Relay):
    """The relay of a long reply, unless ``may_begin`` objects when it starts to arrive or the client is leaving.

    From then on the operation is no longer interrupted: a router that does not need the reply any more still reads it,
    because of the cursor in it.
    """

    def __init__(self, client: ClientConnection, may_begin: Callable[[], bool] | None) -> None:
        super().__init__(client.stream)
        self._client = client
        self._may_begin = may_begin

    def begin(self, beginning: bytes) -> tuple[bytes, int] | None:
        """Begin the relay if allowed; see `Relay`."""
        if self._client.is_disconnected or (self._may_begin is not None and not self._may_begin()):
            return None
        self._client.is_interruptible = False
        return super().begin(beginning)


class Upstream:
    """A client's connection to the mongod, opened when first needed.

    Attributes:
        connection_id: mongod's number of the connection, once known from a ``hello``.
        user: the authenticated user, according to the mongod; None without one, and without access control.
        roles: the user's roles at the log-in, including inherited ones, each as ``{role, db}``.
        attempt: the user of a log-in in progress.
    """

    __slots__ = ("_check_mongod", "_client", "_connection", "_mongod", "attempt", "connection_id", "roles", "user")

    def __init__(
        self, mongod: LocalMongod, client: ClientConnection, check_mongod: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Create it; `check_mongod` raises BackendError if the mongod must not serve any client."""
        self._mongod = mongod
        self._client = client
        self._check_mongod = check_mongod
        self._connection: Connection | None = None
        self.connection_id: int | None = None
        self.user: UserName | None = None
        self.roles: Sequence[Mapping[str, str]] = ()
        self.attempt: UserName | None = None

    @property
    def connection(self) -> Connection | None:
        """The connection, if there is one."""
        return self._connection

    @property
    def is_open(self) -> bool:
        """Whether there is a connection."""
        return self._connection is not None

    @may_run_in_reactor
    async def open(self) -> None:
        """Connect now, so that sending a request need not wait; BackendError if that fails."""
        await self._open()

    @may_run_in_reactor
    async def pass_on(self, frame: bytes, flags: int, may_begin: Callable[[], bool] | None = None) -> bytes | None:
        """Forward a request, relaying a long reply to the client as it arrives; then None is returned.

        Args:
            may_begin: called when a long reply starts to arrive; if it returns False, the reply is received whole and
                returned.

        Raises:
            BackendError: as `forward`.
            CommandError: as `forward`.
        """
        client = self._client
        if flags & (MORE_TO_COME | EXHAUST_ALLOWED) or not client.is_answered_verbatim:
            return await self.forward(frame, flags)
        connection = self._connection or await self._open()
        try:
            return await connection.exchange_for(frame, _AnswerRelay(client, may_begin))
        except CommandError:
            client.is_finished = True  # no room for the reply: the client's connection to the mongod was closed
            raise

    @may_run_in_reactor
    async def forward(self, frame: bytes, flags: int) -> bytes | None:
        """Send a client's request to the mongod; return the reply's frame, or None if the request gets no reply.

        Args:
            frame: the whole OP_MSG.

        Raises:
            BackendError: mongod could not be reached or broke the connection; the client must be disconnected too.
            CommandError: there is no room for a long reply; the client is disconnected after this error.
        """
        connection = self._connection or await self._open()
        if not flags & (MORE_TO_COME | EXHAUST_ALLOWED):
            try:
                return await connection.exchange(frame)
            except CommandError:
                self._client.is_finished = True  # no room for the reply, as in `pass_on`
                raise
        if flags & MORE_TO_COME:
            await connection.send(frame)
            return None
        return await self._stream(connection, frame)

    @may_run_in_reactor
    async def receive(self, begun: Begun, may_begin: Callable[[], bool] | None) -> bytes | None:
        """Receive the reply to a sent request, relayed as in `pass_on` if `may_begin` is given; errors as `forward`."""
        try:
            relay = None if may_begin is None else _AnswerRelay(self._client, may_begin)
            return await begun.connection.receive_answer(begun.frame, relay)
        except CommandError:
            self._client.is_finished = True  # no room for the reply, as in `pass_on`
            raise

    @may_run_in_reactor
    async def command(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run one of the daemon's own commands on the client's connection, so that it acts as the client.

        Raises:
            CommandError: the reply has ``ok: 0``.
            BackendError: as `forward`.
        """
        connection = self._connection or await self._open()
        return await connection.command(db, command)

    @may_run_in_reactor
    async def log_in(self) -> None:
        """Log the client's connection in as a part of the cluster, as this daemon itself.

        Raises:
            CommandError: the mongod refuses.
            BackendError: as `forward`.
        """
        connection = self._connection or await self._open()
        await connection.log_in()

    def note_user(self, user: "UserName | None", roles: Sequence[Mapping[str, str]]) -> None:
        """Record the authenticated user and roles that the mongod reports."""
        self.roles = roles
        self._client.permit = b"" if user is not None and user.is_internal else None
        if user != self.user:
            self.user = user
            self._client.log_in_changed(is_logged_in=user is not None)

    def break_off(self) -> None:
        """Close the connection, and disconnect the client after the running request."""
        self._client.is_finished = True
        self.close()

    def close(self) -> None:
        """Close the connection; mongod ends its operations as if the client itself had disconnected."""
        if self._connection is not None:
            self._connection.close()

    @may_run_in_reactor
    async def _open(self) -> Connection:
        if self._check_mongod is not None:
            await self._check_mongod()
        self._connection = connection = await Connection.open(self._mongod.socket_path)
        connection.take_abandoned = self._mongod.pool.end_request
        return connection

    async def answer_stream(
        self, request: Request, next_batch: Callable[[Request], Awaitable[bytes | None]]
    ) -> bytes | None:
        """Answer a ``getMore`` that allows an exhaust stream: send each batch except the last one, which is returned.

        Args:
            request: the ``getMore``.
            next_batch: returns the reply to a request for a single batch.

        Raises:
            BackendError: as `forward`.
            CommandError: as ``next_batch``; it ends the stream.
        """
        single = Request(OpMsg(op_msg(request.body, request_id=request.message.request_id)))
        response_to = request.message.frame[4:8]
        while (reply := await next_batch(single)) is not None:
            cursor_id = id_in_reply(reply)
            is_last = cursor_id is None or not any(reply[cursor_id[2] : cursor_id[3]])
            flags = reply[16] if is_last else reply[16] | MORE_TO_COME
            reply = b"".join((reply[:8], response_to, reply[12:16], bytes((flags,)), reply[17:]))
            if is_last:
                break
            await self._client.send(reply)
            response_to = reply[4:8]
        return reply

    @may_run_in_reactor
    async def _stream(self, connection: Connection, frame: bytes) -> bytes:
        """Forward exhaust replies except the last one, which is returned."""
        reply = await connection.exchange(frame)
        try:
            while reply[16] & MORE_TO_COME:
                await self._client.send(reply)
                reply = await connection.receive()
        except BaseException:
            connection.close()  # otherwise mongod would keep sending
            self._client.is_finished = True
            raise
        return reply
