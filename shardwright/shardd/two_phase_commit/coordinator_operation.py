"""A two-phase commit's entry in ``$currentOp``."""

from datetime import timedelta
from typing import Any

import trio
from bson.int64 import Int64

from shardwright.shardd.two_phase_commit.transaction_coordinator import TransactionCoordinator


def coordinator_operation(coordinator: TransactionCoordinator, address: str) -> dict[str, Any]:
    """A commit as ``$currentOp`` of a MongoDB 6.0 shard shows it.

    Args:
        coordinator: of the commit.
        address: ``host:port`` of this daemon.
    """
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
