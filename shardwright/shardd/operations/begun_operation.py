"""An operation that a passage has admitted and sent to mongod, for the ordinary way to take over."""

from typing import TYPE_CHECKING

from shardwright.wire.transport.client import Begun, Connection

if TYPE_CHECKING:
    from shardwright.shardd.exchange.operation_generation import OperationGeneration
    from shardwright.shardd.metadata.admitted_placement import AdmittedPlacement
    from shardwright.shardd.metadata.namespace_state import NamespaceState
    from shardwright.wire.passages import Passage


class BegunOperation(Begun):
    """An operation that was counted in.

    Attributes:
        request_frame: the frame of the router.
        term: of the mongod when the operation was admitted.
        state: of its namespace.
        operations: the generation in which it was counted.
        placement: by which it runs.
        passage: what has begun it.
        is_write: whether it writes.
        must_end: whether it needs the complete filter if its first batch leaves a cursor open.
    """

    __slots__ = ("is_write", "must_end", "operations", "passage", "placement", "request_frame", "state", "term")

    def __init__(
        self,
        connection: Connection,
        frame: bytes,
        started: float,
        request_frame: bytes,
        term: int | None,
        state: "NamespaceState",
        passage: "Passage",
        placement: "AdmittedPlacement",
        *,
        is_write: bool,
        must_end: bool,
    ) -> None:
        self.connection, self.frame, self.started = connection, frame, started
        self.request_frame = request_frame
        self.term = term
        self.state = state
        self.operations: OperationGeneration = state.operations
        self.passage = passage
        self.placement = placement
        self.is_write = is_write
        self.must_end = must_end

    def give_up(self) -> None:
        """See `Begun`; the operation is counted out."""
        super().give_up()
        self.state.exit(self.operations, is_write=self.is_write)
