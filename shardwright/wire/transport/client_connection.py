"""One client of a server: its connection, its pending request, and that request's deadline."""

import math
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

import trio

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import is_string
from shardwright.wire.transport.reactor import RequestLoop, may_run_in_reactor
from shardwright.wire.transport.reply_memory import UnreadReplies
from shardwright.wire.transport.stream import FrameStream

if TYPE_CHECKING:
    from shardwright.wire.request import Request
    from shardwright.wire.tls import Subject
    from shardwright.wire.trace_context import TraceContext
    from shardwright.wire.transport.client import Begun


_connection_ids = count(1)


class LogIns(Protocol):
    """Observer of clients' log-ins (`wire.transport.unauthenticated_clients.Newcomers`)."""

    def add(self, client: "ClientConnection", *, has_asked: bool) -> None:
        """Register a client that is not logged in any longer."""

    def remove(self, client: "ClientConnection") -> None:
        """Remove a client that has logged in."""

    def has_failed(self, client: "ClientConnection") -> None:
        """Count a failed log-in."""


class Lane(Protocol):
    """Fast path for recognised requests (`wire.transport.express_lane.ExpressLane`)."""

    @may_run_in_reactor
    async def receive(self) -> bytes | None:
        """Return the next frame for the ordinary path; None if the client has closed the connection."""


class ClientConnection:
    """One client of a server.

    Attributes:
        begun: the running operation, if its request has been sent already (`wire.transport.express_lane`).
        id: the connection's number, unique in this process; ``connectionId`` in hello.
        peer: ``ip:port`` of the client (or the path of the UNIX socket).
        tls_version: such as ``TLSv1.3``; None without TLS.
        is_newcomer: whether it has to log in and has not.
        is_interruptible: whether the running operation may be cancelled when the client disconnects.
        is_answered_verbatim: whether the reply to the running request is sent exactly as the handler returns it,
            without compression or checksum, so that the handler may also write it to the stream itself.
        is_finished: whether the running request is the last one to be read.
        unanswered: the request in progress, if its client waits for a reply.
        unread_replies: counts the bytes that this client and others have not read.
        unsent: the rest of a reply that the next step of the loop sends.
        lane: serves recognised requests; None if the daemon has no passages.
        interruption: the error with which the running operation was interrupted.
        deadline: end of the running operation's time limit, on trio's clock.
        loop: the loop for the connection's requests, once it is served.
        permit: selects its passages (`wire.passages.PassageTable`); None for none.
        reserved_bytes: memory reserved for long replies to the running request (`wire.transport.reservations`).
        state: the handler's own state for this connection.
        login: the handler's own record of the logged-in users.
        trace: the recorded span of the running operation; None unless it is traced.
    """

    __slots__ = (
        "begun",
        "certificate_subject",
        "compressors",
        "deadline",
        "failed_log_ins",
        "id",
        "interruption",
        "is_answered_verbatim",
        "is_busy",
        "is_disconnected",
        "is_finished",
        "is_interruptible",
        "is_newcomer",
        "lane",
        "log_ins",
        "login",
        "loop",
        "metadata",
        "peer",
        "permit",
        "reserved_bytes",
        "scope",
        "state",
        "stream",
        "tls_version",
        "trace",
        "unanswered",
        "unread_replies",
        "unsent",
    )

    def __init__(self, stream: FrameStream, peer: str, unread_replies: UnreadReplies) -> None:
        self.id = next(_connection_ids)
        self.stream = stream
        self.peer = peer
        self.unread_replies = unread_replies
        self.certificate_subject: Subject | None = None
        self.tls_version: str | None = None
        self.metadata: dict[str, Any] | None = None
        self.compressors: tuple[str, ...] = ()
        self.failed_log_ins = 0
        self.log_ins: LogIns | None = None
        self.is_newcomer = False
        self.is_answered_verbatim = False
        self.is_busy = False
        self.is_interruptible = False
        self.is_disconnected = False
        self.is_finished = False
        self.unanswered: Request | None = None
        self.unsent: memoryview | None = None
        self.interruption: CommandError | None = None
        self.deadline = math.inf
        self.loop: RequestLoop | None = None
        self.lane: Lane | None = None
        self.begun: Begun | None = None
        self.scope = trio.CancelScope()
        self.reserved_bytes = 0
        self.permit: bytes | None = b""
        self.state: Any = None
        self.login: Any = None
        self.trace: TraceContext | None = None

    @property
    def peer_address(self) -> tuple[str, int] | None:
        """Host and port of the client; None on a UNIX socket."""
        host, colon, port = self.peer.rpartition(":")
        return (host, int(port)) if colon and port.isdecimal() else None

    @property
    def app_name(self) -> str:
        """Application name in the client's handshake, or ""."""
        application = (self.metadata or {}).get("application")
        name = application.get("name") if isinstance(application, dict) else None
        return name if is_string(name) else ""

    def allow_interruption(self) -> None:
        """Allow a disconnect to cancel the running operation; for reads and waits, not writes, as in MongoDB."""
        self.is_interruptible = True
        if self.is_disconnected:
            self.scope.cancel()

    def on_disconnect(self) -> None:
        """Handle the client's disconnect: cancel an interruptible operation."""
        self.is_disconnected = True
        if self.is_interruptible:
            self.scope.cancel()

    def log_in_changed(self, *, is_logged_in: bool) -> None:
        """Report that the client has logged in or out."""
        if self.log_ins is None:
            return
        if is_logged_in:
            self.log_ins.remove(self)
        else:
            self.log_ins.add(self, has_asked=True)

    def log_in_failed(self) -> None:
        """Report a failed log-in; after too many, the connection is closed."""
        if self.log_ins is not None:
            self.log_ins.has_failed(self)

    def on_deadline(self) -> None:
        """Interrupt the running operation at its deadline."""
        if self.interruption is None:
            self.interrupt_operation(CommandError(ErrorCode.MaxTimeMSExpired, "operation exceeded time limit"))

    def interrupt_operation(self, error: CommandError) -> None:
        """Cancel the running operation, and answer it with an error. Must be called by a task."""
        if self.loop is not None:
            self.interruption = error
            self.loop.interrupt()

    @may_run_in_reactor
    async def send(self, frame: bytes) -> None:
        """Send an additional frame, such as an exhaust reply; bytes that the client has not read count as unread.

        Raises:
            SlowClientError: there is no room for the unread bytes.
            OSError: the connection broke.
        """
        rest = self.stream.send_now(frame)
        if rest is not None:
            await self.unread_replies.send(self.stream, rest, self)
        elif self.reserved_bytes:
            self.unread_replies.reservations.release(self)


class Deadlines:
    """The deadlines of running operations, at most one for each client."""

    def __init__(self) -> None:
        self._clients: set[ClientConnection] = set()
        self._next = math.inf
        self._is_earlier = trio.Event()

    def set(self, client: ClientConnection, seconds: float) -> None:
        """Interrupt the client's running operation after some seconds, unless `clear` is called first."""
        client.deadline = deadline = trio.current_time() + seconds
        self._clients.add(client)
        if deadline < self._next:
            self._next = deadline
            self._is_earlier.set()

    def clear(self, client: ClientConnection) -> None:
        """Remove the time limit of the client's operation."""
        # The client stays in the set until the task next wakes: its next operation probably sets a deadline again.
        client.deadline = math.inf

    def forget(self, client: ClientConnection) -> None:
        """Remove a disconnected client at once, even if its last deadline is far away."""
        self._clients.discard(client)

    async def run(self) -> None:
        """Interrupt operations at their deadlines, until cancelled."""
        while True:
            self._is_earlier = trio.Event()
            with trio.move_on_at(self._next):
                await self._is_earlier.wait()
                continue
            self._interrupt_due(trio.current_time())

    def _interrupt_due(self, now: float) -> None:
        for client in [each for each in self._clients if each.deadline <= now]:
            client.deadline = math.inf
            client.on_deadline()
        self._clients = {each for each in self._clients if each.deadline < math.inf}
        self._next = min((each.deadline for each in self._clients), default=math.inf)
