"""The states of the three parties to a resharding operation, in MongoDB's words and order.

The coordinator on the config servers leads. It enters its next state when every donor or every recipient has reported
the state that the present one requires.
"""

from enum import StrEnum
from typing import Final


class CoordinatorState(StrEnum):
    """State of the whole operation."""

    INITIALIZING = "initializing"
    PREPARING_TO_DONATE = "preparing-to-donate"
    CLONING = "cloning"
    APPLYING = "applying"
    BLOCKING_WRITES = "blocking-writes"
    ABORTING = "aborting"
    COMMITTING = "committing"


class DonorState(StrEnum):
    """State of a shard that gives documents."""

    PREPARING_TO_DONATE = "preparing-to-donate"
    DONATING_INITIAL_DATA = "donating-initial-data"
    DONATING_OPLOG_ENTRIES = "donating-oplog-entries"
    PREPARING_TO_BLOCK_WRITES = "preparing-to-block-writes"
    BLOCKING_WRITES = "blocking-writes"
    ERROR = "error"
    DONE = "done"


class RecipientState(StrEnum):
    """State of a shard that receives documents."""

    AWAITING_FETCH_TIMESTAMP = "awaiting-fetch-timestamp"
    CREATING_COLLECTION = "creating-collection"
    CLONING = "cloning"
    APPLYING = "applying"
    STRICT_CONSISTENCY = "strict-consistency"
    ERROR = "error"
    DONE = "done"


_FORWARD: Final = (
    CoordinatorState.INITIALIZING,
    CoordinatorState.PREPARING_TO_DONATE,
    CoordinatorState.CLONING,
    CoordinatorState.APPLYING,
    CoordinatorState.BLOCKING_WRITES,
    CoordinatorState.COMMITTING,
)

_RECIPIENT_ORDER: Final = (
    RecipientState.AWAITING_FETCH_TIMESTAMP,
    RecipientState.CREATING_COLLECTION,
    RecipientState.CLONING,
    RecipientState.APPLYING,
    RecipientState.STRICT_CONSISTENCY,
    RecipientState.DONE,
)

DECIDED: Final = frozenset({CoordinatorState.COMMITTING, CoordinatorState.ABORTING})
"""States that the operation does not leave for the opposite outcome."""


def may_follow(present: CoordinatorState, following: CoordinatorState) -> bool:
    """Whether the coordinator may change to a state: to the next one, or, before the decision, to abort."""
    if present in DECIDED:
        return False
    if following is CoordinatorState.ABORTING:
        return True
    return _FORWARD[_FORWARD.index(present) + 1] is following


def has_reached(state: RecipientState, wanted: RecipientState) -> bool:
    """Whether a recipient has reached a state; one that has failed has reached only ``error``."""
    if RecipientState.ERROR in (state, wanted):
        return state is wanted
    return _RECIPIENT_ORDER.index(state) >= _RECIPIENT_ORDER.index(wanted)
