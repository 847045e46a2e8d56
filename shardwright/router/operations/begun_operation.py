"""Operations begun by a passage: on one shard, merged from several, in a transaction, or a ``getMore``.

A passage sends its requests before there is an `Operation`, and nearly always it also ends the operation. Otherwise the
ordinary path takes over: it starts again with the same routing, but does not resend the first requests, and receives
the replies that are in flight.
"""

from collections.abc import Callable, Sequence

from shardwright.router.context.router_context import RouterContext
from shardwright.router.cursors.open_cursor import OpenCursor
from shardwright.router.exec.remote import RemoteCursor
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.transaction_abort import abort_after_error
from shardwright.router.placement.routing_info import CollectionRouting
from shardwright.router.transactions.router_transaction import RouterTransaction
from shardwright.router.transactions.transaction_table import RouterSession
from shardwright.wire.error_codes import ErrorCode, code_name
from shardwright.wire.message import OpMsg
from shardwright.wire.passages import Passage
from shardwright.wire.request import Request
from shardwright.wire.transport.client import Begun, Connection
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.pool import Asked, Pool


class BegunOperation(Begun):
    """An operation that was sent to one shard.

    Attributes:
        admitted: converts its request to the authorized one; None without access control.
    """

    __slots__ = (
        "_client",
        "_context",
        "_operation",
        "admitted",
        "passage",
        "pool",
        "request_frame",
        "routing",
        "shard_id",
    )

    def __init__(
        self,
        context: RouterContext,
        client: ClientConnection,
        request_frame: bytes,
        started: float,
        routing: CollectionRouting | None,
        shard_id: str,
        pool: Pool,
        connection: Connection,
        frame: bytes,
        passage: Passage,
        admitted: Callable[[Request], Request] | None,
    ) -> None:
        self.connection, self.frame, self.started = connection, frame, started
        self.following = self.answered = ()
        self.passage = passage
        self.admitted = admitted
        self._context = context
        self._client = client
        self.request_frame = request_frame
        self.routing = routing
        self.shard_id = shard_id
        self.pool = pool
        self._operation: Operation | None = None

    @property
    def operation(self) -> Operation:
        """The operation, created on demand, for code that shows or interrupts it."""
        if self._operation is None:
            self._operation = Operation(self._context, self._client, Request(OpMsg(self.request_frame)))
            self._operation.started = self.started
            self._operation.targeted = self.targeted
            if self.admitted is not None:
                self._operation.request = self.admitted(self._operation.request)
        return self._operation

    @property
    def targeted(self) -> tuple[str, ...]:
        """The shards that it was sent to."""
        return (self.shard_id,)

    def take_over(self, request: Request) -> tuple[Operation, Sequence[Asked]]:
        """Return the operation for the ordinary path, and the replies in flight that it must receive."""
        operation = self.operation
        operation.request = operation.origin = request
        if self.admitted is not None:
            operation.request = self.admitted(request)
        operation.begun_routing = self.routing
        expected = self._expected()
        operation.sender = self._context.sender.expecting(expected)
        return operation, [asked for _, asked in expected.values()]

    def _expected(self) -> dict[str, tuple[str, Asked]]:
        return {self.shard_id: (self.pool.address, Asked(self.pool, self.connection, self.frame))}

    def give_up(self) -> None:
        """Abandon the operation, see `Begun`; return the connection to its pool."""
        super().give_up()
        self.pool.give_back(self.connection)


class BegunMerge(BegunOperation):
    """A find that was sent to several shards.

    Attributes:
        shards: the shards in the order of `Begun.posted`, each with the pool of its connection; at least one.
        share: as `Merged.share`.
    """

    __slots__ = ("shards", "share")

    def __init__(
        self,
        context: RouterContext,
        client: ClientConnection,
        request_frame: bytes,
        started: float,
        routing: CollectionRouting,
        shards: Sequence[tuple[str, Pool]],
        posted: Sequence[tuple[Connection, bytes]],
        share: int | None,
        passage: Passage,
        admitted: Callable[[Request], Request] | None,
    ) -> None:
        (shard_id, pool), (connection, frame) = shards[0], posted[0]
        super().__init__(
            context, client, request_frame, started, routing, shard_id, pool, connection, frame, passage, admitted
        )
        self.shards = shards
        self.share = share
        self.following = tuple(posted[1:])

    @property
    def targeted(self) -> tuple[str, ...]:
        """The shards that it was sent to."""
        return tuple(shard_id for shard_id, _ in self.shards)

    def take_over(self, request: Request) -> tuple[Operation, Sequence[Asked]]:
        """See `BegunOperation`; replies that were already received are given back to their streams."""
        for connection, _, reply in self.answered:
            connection.stream.give_back(reply)
        operation, asked = super().take_over(request)
        operation.begun_shares = (self.share,)
        return operation, asked

    def _expected(self) -> dict[str, tuple[str, Asked]]:
        return {
            shard_id: (pool.address, Asked(pool, *request))
            for (shard_id, pool), request in zip(self.shards, self.posted, strict=True)
        }

    def give_back(self) -> None:
        """Return all connections to their pools."""
        for (_, pool), (connection, _) in zip(self.shards, self.posted, strict=True):
            pool.give_back(connection)

    def give_up(self) -> None:
        """See `BegunOperation`."""
        Begun.give_up(self)
        self.give_back()


class BegunStatement(BegunOperation):
    """A statement of an open transaction that was sent to a participant.

    Attributes:
        session: the session, checked out until the statement has ended.
        transaction: its transaction.
    """

    __slots__ = ("session", "transaction")

    def __init__(
        self,
        context: RouterContext,
        client: ClientConnection,
        request_frame: bytes,
        started: float,
        routing: CollectionRouting,
        shard_id: str,
        pool: Pool,
        connection: Connection,
        frame: bytes,
        passage: Passage,
        admitted: Callable[[Request], Request] | None,
        session: RouterSession,
        transaction: RouterTransaction,
    ) -> None:
        super().__init__(
            context, client, request_frame, started, routing, shard_id, pool, connection, frame, passage, admitted
        )
        self.session = session
        self.transaction = transaction

    @property
    def operation(self) -> Operation:
        """The operation of `BegunOperation`, in the transaction."""
        operation = super().operation
        if operation.transaction is None:
            operation.enter(self.transaction)
        return operation

    def take_over(self, request: Request) -> tuple[Operation, Sequence[Asked]]:
        """Take over as `BegunOperation` does; the operation continues in the session."""
        operation, asked = super().take_over(request)
        operation.begun_session = self.session
        return operation, asked

    def _expected(self) -> dict[str, tuple[str, Asked]]:
        return {self.shard_id: (self.pool.address, _AskedByPassage(self))}

    def give_up(self) -> None:
        """Give up as `BegunOperation` does, and abort the transaction."""
        super().give_up()
        self._context.background.start_soon(self._abort)

    def note_lost_reply(self) -> None:
        """Abort the transaction, unless the ordinary path has continued the statement, which then aborts it itself."""
        if self.operation.begun_session is not None:
            self.operation.begun_session = None
            self._context.background.start_soon(self._abort)

    async def _abort(self) -> None:
        try:
            await abort_after_error(self.operation, self.transaction, code_name(ErrorCode.Interrupted))
        finally:
            self.session.check_in()


class BegunBatch(BegunOperation):
    """A ``getMore`` of a cursor on one shard.

    Attributes:
        entry: the cursor, checked out.
        remote: the shard's cursor.
    """

    __slots__ = ("entry", "remote")

    def __init__(
        self,
        context: RouterContext,
        client: ClientConnection,
        request_frame: bytes,
        started: float,
        entry: OpenCursor,
        remote: RemoteCursor,
        pool: Pool,
        connection: Connection,
        frame: bytes,
        passage: Passage,
    ) -> None:
        super().__init__(
            context, client, request_frame, started, None, remote.shard_id, pool, connection, frame, passage, None
        )
        self.entry = entry
        self.remote = remote

    def take_over(self, request: Request) -> tuple[Operation, Sequence[Asked]]:
        """See `BegunOperation`; the shard's cursor then receives the reply."""
        operation = self.operation
        operation.request = operation.origin = request
        asked = _AskedByPassage(self)
        self.remote.note_asked(asked, len(self.frame))
        return operation, [asked]

    def note_lost_reply(self) -> None:
        """End the cursor, because its next batch is lost, unless the ordinary path reads it."""
        if self.entry.is_in_passage:
            self._context.cursors.end_in_passage(self.entry, is_usable=False)

    def give_up(self) -> None:
        """See `BegunOperation`; the cursor ends."""
        super().give_up()
        self.note_lost_reply()


class _AskedByPassage(Asked):
    """A request that a passage sent, and whose loss has to end its cursor or its transaction."""

    __slots__ = ("_begun",)

    def __init__(self, begun: BegunStatement | BegunBatch) -> None:
        super().__init__(begun.pool, begun.connection, begun.frame)
        self._begun = begun

    def give_up(self) -> None:
        """See `Asked`."""
        if not self.is_over:
            super().give_up()
            self._begun.note_lost_reply()


def running_operation(client: ClientConnection) -> Operation | None:
    """Return a client's running operation, if any."""
    state: Operation | BegunOperation | None = client.state
    return state.operation if isinstance(state, BegunOperation) else state
