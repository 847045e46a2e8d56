"""An operation begun by a passage, which sent its request to a shard before there was an `Operation`.

Nearly always the passage also ends it. Otherwise the ordinary path takes it over. It starts again with the same
routing, but does not resend the first request, and receives the reply that is in flight.
"""

from collections.abc import Callable

from shardwright.router.context.router_context import RouterContext
from shardwright.router.operations.operation import Operation
from shardwright.router.placement.collection_routing import CollectionRouting
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
        routing: CollectionRouting,
        shard_id: str,
        pool: Pool,
        connection: Connection,
        frame: bytes,
        passage: Passage,
        admitted: Callable[[Request], Request] | None,
    ) -> None:
        self.connection, self.frame, self.started = connection, frame, started
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
            self._operation.targeted = (self.shard_id,)
            if self.admitted is not None:
                self._operation.request = self.admitted(self._operation.request)
        return self._operation

    def take_over(self, request: Request) -> tuple[Operation, Asked]:
        """Return the operation for the ordinary path, and the reply in flight that it must receive."""
        operation = self.operation
        operation.request = operation.origin = request
        if self.admitted is not None:
            operation.request = self.admitted(request)
        operation.begun_routing = self.routing
        asked = Asked(self.pool, self.connection, self.frame)
        operation.sender = self._context.sender.expecting(self.pool.address, asked)
        return operation, asked

    def give_up(self) -> None:
        """Abandon the operation, see `Begun`; return the connection to its pool."""
        super().give_up()
        self.pool.give_back(self.connection)


def running_operation(client: ClientConnection) -> Operation | None:
    """Return a client's running operation, if any."""
    state: Operation | BegunOperation | None = client.state
    return state.operation if isinstance(state, BegunOperation) else state
