"""Where migrations of these tests are stopped, what is killed there, and which chunk is moved."""

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
"""Where a migration waits."""

COMMITTED_PLACES: Final = tuple(
    Place(f"{DONOR}.shardd", name)
    for name in (
        *("hangBeforeMakingCommitDecisionDurable", "hangBeforeSendingCommitDecision"),
        "hangBeforeForgettingMigrationAfterCommitDecision",
    )
)
"""Where a migration waits that has been committed, in this order, while clients go on."""

ABORTED_PLACES: Final = tuple(Place(place.daemon, place.name.replace("Commit", "Abort")) for place in COMMITTED_PLACES)
"""Likewise one that has been aborted."""

DELETION_PLACES: Final = tuple(
    Place(f"{DONOR}.shardd", name)
    for name in ("suspendRangeDeletion", "hangBeforeDoingDeletion", "hangAfterDoingDeletion")
)
"""Where the deletion of the range waits that the donor has given away."""

FAILURES: Final = (
    *(Place(f"{DONOR}.shardd", name) for name in ("loseMigrateCloneReply", "loseTransferModsReply")),
    *(Place(f"{DONOR}.shardd", name) for name in ("migrationCommitVersionError", "migrationCommitNetworkError")),
    Place(f"{DONOR}.shardd", "failMigrationCommit"),
    Place(f"{RECIPIENT}.shardd", "migrationRecipientFailPostCommitRefresh"),
)
"""Where something goes wrong by itself."""


ABORTABLE_PLACES: Final = tuple(
    place for place in PLACES if place.name not in ("moveChunkHangAtStep6", "hangBeforeLeavingCriticalSection")
)
"""Those that a migration passes before its commit."""

BLOCKED_PLACES: Final = (
    *("moveChunkHangAtStep5", "hangBeforeLeavingCriticalSection"),
    *("migrateThreadHangAtStep6", "migrateThreadHangAtStep7"),
)
"""Where the migration stands in its critical section, so that writes wait; reads at the donor do so later."""

READABLE_AT: Final = {"moveChunkHangAtStep5": LOWER, "hangBeforeLeavingCriticalSection": UPPER}
"""Where reads wait on one shard: the other. Before the commit the recipient has a critical section for reads too, as in
MongoDB; after it, only the donor."""


def middle_to(shard: str, namespace: str) -> dict[str, Any]:
    """The command that moves the chunk in the middle."""
    return {"moveChunk": namespace, "find": {"key": SPLITS[0]}, "to": shard}


def move_the_middle_on(cluster: FaultCluster, namespace: str) -> None:
    """Move the chunk in the middle to where it is not: after any migration, however it ended, the next one succeeds."""
    owner = Placement.of(cluster, namespace).owner({"key": SPLITS[0]})
    cluster.router(1).admin.command(middle_to(LOWER if owner == UPPER else UPPER, namespace))
