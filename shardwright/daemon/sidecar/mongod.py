"""The mongod behind a sidecar: the daemon's own commands to it, and a separate connection for each client.

The client's bytes are forwarded on its own connection (`Upstream`), because sessions, cursors, transactions, exhaust
replies and, if enabled, authentication belong to a connection. A request keeps its id, because the reply refers to it.
"""

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from bson import encode
from bson.timestamp import Timestamp

from shardwright.daemon.sidecar.term_fence import Reign, TermFence, UnansweredCommands, check_term, reign_of_task
from shardwright.daemon.sidecar.user_write_block import BYPASS, GlobalLock
from shardwright.wire.cursor_batch import id_in_reply
from shardwright.wire.errors import CommandError, check_writes
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import EXHAUST_ALLOWED, MORE_TO_COME, OpMsg, op_msg
from shardwright.wire.request import Request
from shardwright.wire.transport.client import Begun, Connection, decode_reply
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.pool import ConnectionPools, Pool
from shardwright.wire.transport.reactor import in_own_task, may_run_in_reactor
from shardwright.wire.transport.reply_memory import Relay
from shardwright.wire.transport.transport import Transport

if TYPE_CHECKING:
    from shardwright.daemon.users import UserName

REPLICATION_DATA: Final = "$replData"


class LocalMongod:
    """The local mongod's addresses, and a pool of connections for the daemon's own commands.

    Methods that access mongod raise BackendError if it does not answer.

    Args:
        present_reign: returns the daemon's current reign, None if the mongod is not primary; not needed if no task
            works for a reign.

    Attributes:
        address: its address in its replica set's configuration (`SidecarOptions.mongod_address`).
        pool: the daemon's own connections; clients have separate ones (`daemon.sidecar.mongod`).
        fence: makes mongod refuse writes sent in an earlier term, if the daemon uses one.
        unanswered: commands of reigns that mongod may still execute.
        global_lock: turns between changes that need mongod's global lock and clients' transactions.
    """

    def __init__(
        self,
        pools: ConnectionPools,
        socket_path: str,
        address: str,
        present_reign: Callable[[], Awaitable[Reign | None]] | None = None,
    ) -> None:
        self.socket_path = socket_path
        self.address = address
        self.pool = pools[socket_path]
        self._pools = pools
        self._present_reign = present_reign
        self.fence: TermFence | None = None
        self.unanswered = UnansweredCommands(self.pool)
        self.global_lock = GlobalLock()

    @property
    def transport(self) -> Transport:
        """The transport of all connections of the daemon."""
        return self._pools.transport

    def pool_of_member(self, address: str) -> Pool:
        """Return the daemon's own connections to the mongod of a member of the set.

        Args:
            address: in the set's configuration. It may be a socket path, relative to the common directory of the
                members' sockets.
        """
        if address == self.address:
            return self.pool
        return self._pools[os.path.join(os.path.dirname(self.socket_path), address) if "/" in address else address]

    def number_writes_by(self, fence: TermFence) -> None:
        """Number the writes of a term by a fence from now on, so that mongod refuses them in any later term."""
        self.fence = fence

    @may_run_in_reactor
    async def command(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run a command and return its decoded reply. It may write even if the writes of users are blocked.

        For a task that works for a reign (`daemon.sidecar.term_fence`), the command runs in its term only. It is not
        sent if the reign is over, and fails if its reply shows that it ran in another term.

        Raises:
            CommandError: the reply has ``ok: 0``; InterruptedDueToReplStateChange, the reign is over.
        """
        reign = reign_of_task()
        if reign is None:
            return await self.pool.command(db, {**command, BYPASS: True})
        reply = await self._command_of(reign, db, command)
        metadata = reply.pop(REPLICATION_DATA, None)
        if metadata is not None:
            check_term(reign.term, metadata["term"])
        return reply

    @may_run_in_reactor
    async def _command_of(self, reign: Reign, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        """Check the reign after all waiting is done, since the daemon may be paused during any wait; then send."""
        frame = op_msg(encode({**command, BYPASS: True, REPLICATION_DATA: 1, "$db": db}), request_id=next_request_id())
        connection = await self.pool.borrow()
        try:
            await self.check_term_before()
            with self.unanswered.noted(connection, reign):
                answer = await connection.exchange(frame)
        finally:
            self.pool.give_back(connection)
        reply = decode_reply(answer)
        if not reply.get("ok"):
            raise CommandError.from_reply(reply)
        return reply

    @may_run_in_reactor
    async def check_term_before(self) -> None:
        """Check that the reign for which this task works, if any, is the current one.

        Nothing is awaited between the last reading of the clock and the return.

        Raises:
            CommandError: InterruptedDueToReplStateChange, the reign is over.
        """
        reign = reign_of_task()
        if reign is not None:
            await in_own_task()
            assert self._present_reign is not None
            check_term(reign, await self._present_reign())

    async def operation_time(self) -> Timestamp:
        """Return a time at or after every answered write; errors as `command`."""
        time: Timestamp = (await self.command("admin", {"ping": 1}))["operationTime"]
        return time

    async def write(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run a write command; return its reply. If there is a fence, mongod refuses the write in another term.

        Raises:
            CommandError: the command failed, one of its items did, or its write concern could not be satisfied; as
                `command`.
        """
        return await (self.execute_write(db, command) if self.fence is None else self.fence.write(db, command))

    async def execute_write(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run a write command without a fence's number; errors as `write`."""
        reply = await self.command(db, command)
        check_writes(reply)
        return reply


class _AnswerRelay(Relay):
    """The relay of a long reply, unless ``may_begin`` objects when it starts to arrive or the client is leaving.

    From then on the operation is no longer interrupted: a router that does not need the reply any more still reads it,
    because of the cursor in it.
    """

    client: ClientConnection

    def __init__(self, client: ClientConnection, may_begin: Callable[[], bool] | None) -> None:
        super().__init__(client)
        self._may_begin = may_begin

    def begin(self, beginning: bytes) -> tuple[bytes, int] | None:
        """Begin the relay if allowed; see `Relay`."""
        if self.client.is_disconnected or (self._may_begin is not None and not self._may_begin()):
            return None
        self.client.is_interruptible = False
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
        self._connection = connection = await Connection.open(self._mongod.transport, self._mongod.socket_path)
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
