"""Resharding operations in progress in this term, for the commands that wait for them or end them."""

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import trio

from shardwright.daemon.single_flight import SingleFlight
from shardwright.sharding.resharding.statistics import ReshardingStatistics
from shardwright.wire.error_codes import ErrorCode

ABORTED = "aborted"
"""MongoDB's message for an operation that a user has ended."""


class ReshardingControl:
    """The users' control of one operation.

    Attributes:
        commit_requested: set when a user does not want to wait until the recipients have caught up.
        is_decided: the decision to commit is being written, or has been.
        began: the start of the operation in this term, on trio's clock.
        shown: returns its entry in ``currentOp``; None before it runs.
    """

    def __init__(self) -> None:
        self._scope = trio.CancelScope()
        self._is_aborted = False
        self.commit_requested = trio.Event()
        self.is_decided = False
        self.began = trio.current_time()
        self.shown: Callable[[], dict[str, Any]] | None = None

    def before_decision(self) -> trio.CancelScope:
        """Return a scope for the steps before the decision; `abort` cancels it."""
        self._scope = trio.CancelScope()
        if self._is_aborted:
            self._scope.cancel()
        return self._scope

    def abort(self) -> None:
        """Abort the operation, unless it is too late."""
        if not self.is_decided:
            self._is_aborted = True
            self._scope.cancel()


class RunningReshardings:
    """The operations of one term, with the counts of all terms; there is at most one in a cluster."""

    def __init__(self, nursery: trio.Nursery, statistics: ReshardingStatistics) -> None:
        self.statistics = statistics
        self._flights: SingleFlight[UUID, None] = SingleFlight(
            nursery, cancelled=ErrorCode.InterruptedDueToReplStateChange
        )
        self._controls: dict[UUID, ReshardingControl] = {}

    async def run(self, operation_id: UUID, work: Callable[[ReshardingControl], Awaitable[None]]) -> None:
        """Run an operation, or wait for the end of its present run; raises the error with which it ended."""

        async def controlled() -> None:
            try:
                await work(self.control(operation_id))
            finally:
                del self._controls[operation_id]

        await self._flights.run(operation_id, controlled)

    def operations(self) -> list[dict[str, Any]]:
        """Return the operations for ``currentOp``."""
        return [control.shown() for control in self._controls.values() if control.shown is not None]

    def control(self, operation_id: UUID) -> ReshardingControl:
        """Return the control of an operation, even before it has begun in this term.

        If the operation has ended already, the control is kept until the end of the term, without effect.
        """
        return self._controls.setdefault(operation_id, ReshardingControl())
