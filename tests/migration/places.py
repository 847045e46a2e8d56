"""Places at which these tests pause migrations and kill processes, and the chunk that they move."""

from dataclasses import dataclass
from typing import Any, Final

from tests.integration.sharded import LOWER, UPPER
from tests.migration.conftest import SPLITS
from tests.migration.fault_cluster import FaultCluster
from tests.migration.invariants import Placement

DONOR: Final = f"{LOWER}.0"
RECIPIENT: Final = f"{UPPER}.0"

DONOR_STEPS: Final = tuple(f"moveChunkHangAtStep{step}" for step in range(1, 7))
RECIPIENT_STEPS: Final = tuple(f"migrateThreadHangAtStep{step}" for step in range(1, 8))

VICTIMS: Final = (
    *(f"{DONOR}.shardd", f"{DONOR}.mongod", f"{RECIPIENT}.shardd", f"{RECIPIENT}.mongod"),
    *("config.0.configd", "config.0.mongod", "router.0"),
)
"""One process of each kind, on each side."""


@dataclass(frozen=True)
class Place:
    """A fail point, and the daemon that has it."""

    daemon: str
    name: str


PLACES: Final = (
    *(Place(f"{DONOR}.shardd", name) for name in DONOR_STEPS),
    Place(f"{DONOR}.shardd", "hangBeforeLeavingCriticalSection"),
    *(Place(f"{RECIPIENT}.shardd", name) for name in RECIPIENT_STEPS),
)
"""Places at which a migration waits."""

COMMITTED_PLACES: Final = tuple(
    Place(f"{DONOR}.shardd", name)
    for name in (
        *("hangBeforeMakingCommitDecisionDurable", "hangBeforeSendingCommitDecision"),
        "hangBeforeForgettingMigrationAfterCommitDecision",
    )
)
"""Places at which a committed migration waits, in this order, while clients continue."""

ABORTED_PLACES: Final = tuple(Place(place.daemon, place.name.replace("Commit", "Abort")) for place in COMMITTED_PLACES)
"""Places at which an aborted migration waits, in this order."""

DELETION_PLACES: Final = tuple(
    Place(f"{DONOR}.shardd", name)
    for name in ("suspendRangeDeletion", "hangBeforeDoingDeletion", "hangAfterDoingDeletion")
)
"""Places at which the deletion of the donor's former range waits."""

FAILURES: Final = (
    *(Place(f"{DONOR}.shardd", name) for name in ("loseMigrateCloneReply", "loseTransferModsReply")),
    *(Place(f"{DONOR}.shardd", name) for name in ("migrationCommitVersionError", "migrationCommitNetworkError")),
    Place(f"{DONOR}.shardd", "failMigrationCommit"),
    Place(f"{RECIPIENT}.shardd", "migrationRecipientFailPostCommitRefresh"),
)
"""Fail points at which a migration fails by itself."""


ABORTABLE_PLACES: Final = tuple(
    place for place in PLACES if place.name not in ("moveChunkHangAtStep6", "hangBeforeLeavingCriticalSection")
)
"""The places that a migration passes before its commit."""

BLOCKED_PLACES: Final = (
    *("moveChunkHangAtStep5", "hangBeforeLeavingCriticalSection"),
    *("migrateThreadHangAtStep6", "migrateThreadHangAtStep7"),
)
"""The places in the critical section, where writes wait; reads on the donor wait only later."""

READABLE_AT: Final = {"moveChunkHangAtStep5": LOWER, "hangBeforeLeavingCriticalSection": UPPER}
"""The shard on which reads do not wait at these places. As in MongoDB, before the commit the recipient blocks reads of
the range; after it, only the donor does."""


def middle_to(shard: str, namespace: str) -> dict[str, Any]:
    """The command that moves the middle chunk."""
    return {"moveChunk": namespace, "find": {"key": SPLITS[0]}, "to": shard}


def move_the_middle_on(cluster: FaultCluster, namespace: str) -> None:
    """Move the middle chunk to the other shard: after any migration, however it ended, the next one succeeds."""
    owner = Placement.of(cluster, namespace).owner({"key": SPLITS[0]})
    cluster.router(1).admin.command(middle_to(LOWER if owner == UPPER else UPPER, namespace))
