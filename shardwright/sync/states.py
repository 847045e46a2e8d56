"""The states of a replication, with the names of mongosync, and the requests that change them. Pure."""

from enum import StrEnum
from typing import Final


class State(StrEnum):
    """A state, as ``progress`` shows it."""

    IDLE = "IDLE"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    COMMITTING = "COMMITTING"
    COMMITTED = "COMMITTED"
    REVERSING = "REVERSING"


class Step(StrEnum):
    """A request of a user, or an end that the replication has reached by itself."""

    START = "start"
    PAUSE = "pause"
    RESUME = "resume"
    COMMIT = "commit"
    COMMITTED = "committed"
    COMMIT_FAILED = "commit failed"
    REVERSE = "reverse"
    REVERSED = "reversed"


class StateError(Exception):
    """The request is not possible in the present state."""


_STEPS: Final = {
    (State.IDLE, Step.START): State.RUNNING,
    (State.RUNNING, Step.PAUSE): State.PAUSED,
    (State.PAUSED, Step.RESUME): State.RUNNING,
    (State.RUNNING, Step.COMMIT): State.COMMITTING,
    (State.COMMITTING, Step.COMMITTED): State.COMMITTED,
    (State.COMMITTING, Step.COMMIT_FAILED): State.RUNNING,
    (State.COMMITTED, Step.REVERSE): State.REVERSING,
    (State.REVERSING, Step.REVERSED): State.RUNNING,
}


def after(state: State, step: Step) -> State:
    """Return the next state."""
    found = _STEPS.get((state, step))
    if found is None:
        raise StateError(f"cannot {step} a replication that is {state}")
    return found
