"""A migration's progress on its recipient, and the reply to ``_recvChunkStatus``.

States, their order and the form of the reply are those of MongoDB 6.0.5.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final

import trio
from bson.int64 import Int64

from shardwright.shardd.migration.recipient.request import ReceiveRequest
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import raw_document

WAIT_SECONDS_MAX: Final = 1.0
"""How long ``waitForSteadyOrDone`` waits."""


class ReceiveState(StrEnum):
    """The states of a recipient, in order."""

    READY = "ready"
    CLONE = "clone"
    CATCHUP = "catchup"
    STEADY = "steady"
    COMMIT_START = "commitStart"
    ENTERED_CRITICAL_SECTION = "enteredCriticalSection"
    DONE = "done"
    FAIL = "fail"
    ABORT = "abort"


_UNTIL_STEADY: Final = frozenset({ReceiveState.READY, ReceiveState.CLONE, ReceiveState.CATCHUP})


class ReceiveStatus:
    """The progress of one attempt to receive a range.

    Attributes:
        state: the recipient's state.
        error: why it failed, in state `ReceiveState.FAIL`.
        is_active: whether the attempt is under way.
        cloned: number of documents cloned, including those of earlier attempts that this one resumes.
        cloned_bytes: their size in bytes.
        catchup: number of modified documents applied during the catch-up.
        steady: number of modified documents applied since then.
    """

    def __init__(self, request: ReceiveRequest | None) -> None:
        self.state = ReceiveState.READY
        self.error: CommandError | None = None
        self.is_active = request is not None
        self.cloned = 0
        self.cloned_bytes = 0
        self.catchup = 0
        self.steady = 0
        self._request = request
        self._changes = trio.lowlevel.ParkingLot()

    def enter(self, state: ReceiveState) -> None:
        """Change the state."""
        self.state = state
        self._changes.unpark_all()

    def fail(self, error: CommandError) -> None:
        """Enter the state `ReceiveState.FAIL`."""
        self.error = error
        self.enter(ReceiveState.FAIL)

    def end(self) -> None:
        """Record that the attempt is over; its last state remains visible."""
        self.is_active = False
        self._changes.unpark_all()

    async def wait(self, is_reached: Callable[[ReceiveState], bool]) -> None:
        """Return when ``is_reached`` is true of the state, or the attempt is over."""
        while self.is_active and not is_reached(self.state):
            await self._changes.park()

    async def wait_steady_or_done(self) -> None:
        """Return when the recipient is steady or past that, at the latest after `WAIT_SECONDS_MAX`."""
        with trio.move_on_after(WAIT_SECONDS_MAX):
            while self.state in _UNTIL_STEADY:
                await self._changes.park()

    def counts(self) -> dict[str, Any]:
        """The ``counts`` of the reply."""
        return {
            "cloned": Int64(self.cloned),
            "clonedBytes": Int64(self.cloned_bytes),
            "catchup": Int64(self.catchup),
            "steady": Int64(self.steady),
        }

    def report(self) -> dict[str, Any]:
        """The reply to ``_recvChunkStatus``, less ``waited``."""
        request = self._request
        report: dict[str, Any] = {"active": self.is_active}
        if self.is_active and request is not None:
            report["sessionId"] = request.session_id
        report |= {
            "ns": str(request.namespace) if request else "",
            "from": request.donor_connection_string if request else "",
            "fromShardId": request.donor if request else "",
            "min": raw_document(request.range.min) if request else {},
            "max": raw_document(request.range.max) if request else {},
            "shardKeyPattern": raw_document(request.pattern.document) if request else {},
            "supportsCriticalSectionDuringCatchUp": True,
            "state": str(self.state),
        }
        if self.error is not None and self.state is ReceiveState.FAIL:
            report["errmsg"] = f"migrate failed: {self.error.code_name}: {self.error.message}"
        report["counts"] = self.counts()
        return report
