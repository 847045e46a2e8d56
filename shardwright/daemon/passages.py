"""The common part of all daemons' passages: finding the passage of a request, and counting the outcomes."""

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from shardwright.daemon.metrics import LabelledCounter
from shardwright.wire.passages import Outcome, Passage, PassageTable
from shardwright.wire.transport.client import Begun
from shardwright.wire.transport.client_connection import ClientConnection

P = TypeVar("P", bound=Passage)


class DaemonPassages(ABC, Generic[P]):
    """The passages of one daemon (see `wire.transport.express_lane.Passages`), counted by `Outcome`."""

    def __init__(self, counter: LabelledCounter) -> None:
        self._table: PassageTable[P] = PassageTable()
        self._outcomes = counter.values

    def begin(self, client: ClientConnection, frame: bytes) -> Begun | None:
        """Begin an operation on the fast path; see `Passages`."""
        permit = client.permit
        passage = None if permit is None else self._table.find(frame, permit)
        if passage is None:
            self._outcomes[Outcome.UNKNOWN] += 1
            return None
        begun = self._begin(passage, client, frame)
        if begun is None:
            self._outcomes[Outcome.DECLINED] += 1
        return begun

    def leave(self) -> None:
        """Count an operation that left the fast path; see `Passages`."""
        self._outcomes[Outcome.LEFT] += 1

    @abstractmethod
    def _begin(self, passage: P, client: ClientConnection, frame: bytes) -> Begun | None:
        """Begin an operation by its passage; None if the ordinary path must serve it."""
