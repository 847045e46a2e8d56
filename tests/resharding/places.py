"""Places at which these tests stop a resharding operation."""

from typing import Final

from tests.ddl.places import END, Place, config_coordinator_at
from tests.integration.sharded import UPPER

TYPE: Final = "reshardCollection"

_OF_PARTICIPANTS: Final = (
    "reshardingPauseRecipientBeforeCloning",
    "reshardingPauseRecipientDuringCloning",
    "reshardingPauseRecipientDuringOplogApplication",
    "reshardingPauseBeforeBlockingWrites",
    "reshardingPauseBeforeHold",
    "reshardingPauseBeforeCommit",
    "reshardingPauseAfterCommit",
)

_OF_COORDINATOR: Final = config_coordinator_at(
    TYPE,
    *("initializing", "preparing-to-donate", "cloning", "applying", "blocking-writes", "committing", END),
)

STOPS: Final = {
    place.name: place
    for place in (
        *(Place(name, UPPER, "shardd", name, "alwaysOn", {}) for name in _OF_PARTICIPANTS),
        *_OF_COORDINATOR,
    )
}
"""The places that an operation passes, by name, on the shard that is not the primary one, and on the coordinator.

Both shards are donors and recipients.
"""

CLONING: Final = _OF_COORDINATOR[2]
"""An operation can still be aborted here."""

ABORTING: Final = config_coordinator_at(TYPE, "aborting", END)
"""The places that an aborted operation passes."""
