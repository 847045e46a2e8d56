"""Two-phase commits in metrics, ``serverStatus`` and ``$currentOp``."""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final

import trio
from bson.int64 import Int64

from shardwright.daemon.metrics import Metrics
from shardwright.shardd.two_phase_commit.commit_state import Decision, Step, name_of
from shardwright.shardd.two_phase_commit.transaction_coordinator import TransactionCoordinator
from shardwright.wire.message import with_body
from shardwright.wire.rawbson import OBJECT, append, element, encode_document, find, without
from shardwright.wire.transport.client import response_body

_STEPS: Final = tuple(step for step in Step if step is not Step.ENDED)


class CommitStatistics:
    """Counters since the start of the daemon."""

    def __init__(self, metrics: Metrics, running: Iterable[TransactionCoordinator]) -> None:
        self.created = 0
        self.started = 0
        self._ended: Counter[str | None] = Counter()
        self._running = running
        self._outcomes = metrics.labelled_counter(
            "two_phase_commits", "Two-phase commits that have ended", "outcome", ("commit", "abort", "None")
        )
        metrics.gauge(
            "two_phase_commits_active", "Two-phase commits in progress", lambda: sum(self._in_steps().values())
        )

    def count_end(self, decision: Decision | None) -> None:
        """Count a commit that has ended."""
        name = name_of(decision)
        self._ended[name] += 1
        self._outcomes.add(f"{name}")

    def server_status(self) -> dict[str, Any]:
        """Return the section ``twoPhaseCommitCoordinator`` of ``serverStatus``."""
        steps = self._in_steps()
        return {
            "totalCreated": Int64(self.created),
            "totalStartedTwoPhaseCommit": Int64(self.started),
            "totalAbortedTwoPhaseCommit": Int64(self._ended["abort"]),
            "totalCommittedTwoPhaseCommit": Int64(self._ended["commit"]),
            "currentInSteps": {step.value: Int64(steps[step]) for step in _STEPS},
        }

    def _in_steps(self) -> Counter[Step]:
        return Counter(each.state.step for each in self._running)


def coordinator_operation(coordinator: TransactionCoordinator, address: str) -> dict[str, Any]:
    """Describe a commit as ``$currentOp`` of a MongoDB 6.0 shard does; `address` is this daemon's ``host:port``."""
    state, times = coordinator.state, coordinator.times
    now = times.now()
    left = timedelta(seconds=coordinator.deadline - trio.current_time())
    fields: dict[str, Any] = {
        **coordinator.identity.to_document(),
        "txnRetryCounter": 0,
        "numParticipants": Int64(len(state.participants)),
        "state": state.step.state,
        "commitStartTime": times.began,
        "hasRecoveredFromFailover": coordinator.is_recovered,
        "stepDurations": {name: Int64(micros) for name, micros in times.durations().items()},
    }
    if state.decision is not None:
        fields["decision"] = state.decision.to_document()
    fields["deadline"] = now + left
    return {"host": address, "desc": "transaction coordinator", "twoPhaseCommitCoordinator": fields}


SERVER_STATUS: Final = "serverStatus"

_SECTION: Final = b"twoPhaseCommitCoordinator"


def with_commit_statistics(frame: bytes | None, section: Mapping[str, Any]) -> bytes | None:
    """Replace the section ``twoPhaseCommitCoordinator`` in mongod's reply to ``serverStatus``.

    In a plain mongod the section counts nothing. A reply lacks it if it is an error, or if the client excluded it.
    """
    if frame is None:
        return None
    body = response_body(frame)
    if find(body, _SECTION) is None:
        return frame
    return with_body(frame, append(without(body, {_SECTION}), element(_SECTION, OBJECT, encode_document(section))))
