"""Every step of a migration is stopped at, and there every kind of process is killed.

Writers go on all the time, with retryable writes that are retried through a second router. In the end every
acknowledged write is there once, no orphan is to be seen, the chunk map is whole, nothing is left behind, and
chunks can be moved.
"""

from dataclasses import dataclass
from typing import Any, Final

import pytest

from tests.integration.sharded import LOWER, UPPER
from tests.migration.conftest import SPLITS
from tests.migration.fail_points import fail_point
from tests.migration.fault_cluster import FaultCluster
from tests.migration.invariants import check_collection
from tests.migration.moving import moving
from tests.migration.writers import writing

DONOR: Final = "shard0.0"
RECIPIENT: Final = "shard1.0"

DONOR_STEPS: Final = tuple(f"moveChunkHangAtStep{step}" for step in range(1, 8))
RECIPIENT_STEPS: Final = tuple(f"migrateThreadHangAtStep{step}" for step in range(1, 8))

VICTIMS: Final = (
    *(f"{DONOR}.shardd", f"{DONOR}.mongod", f"{RECIPIENT}.shardd", f"{RECIPIENT}.mongod"),
    *("config.0.configd", "config.0.mongod", "router.0"),
)


@dataclass(frozen=True)
class Place:
    """A fail point, and the daemon that has it."""

    daemon: str
    name: str


PLACES: Final = (
    *(Place(f"{DONOR}.shardd", name) for name in DONOR_STEPS),
    *(Place(f"{RECIPIENT}.shardd", name) for name in RECIPIENT_STEPS),
)


def middle_to(shard: str, namespace: str) -> dict[str, Any]:
    """The command that moves the chunk in the middle."""
    return {"moveChunk": namespace, "find": {"key": SPLITS[0]}, "to": shard}


@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
def test_kill(cluster: FaultCluster, namespace: str, place: Place, victim: str) -> None:
    routers = cluster.router_addresses
    with writing(namespace, routers) as writers:
        writers.wait_for_progress(60)
        with (
            fail_point(cluster.client(place.daemon), place.name) as point,
            moving(routers[0], middle_to(UPPER, namespace)) as move,
        ):
            point.wait_entered()
            cluster.kill(victim)
            cluster.restart(victim)
            point.turn_off()
            move.wait()
        writers.wait_for_progress(60)
    writers.retry_kept()
    placement = check_collection(cluster, namespace, writers.model)
    # What was begun may have ended either way; the chunk can be moved to where it is not.
    owner = placement.owner({"key": SPLITS[0]})
    cluster.router(1).admin.command(middle_to(LOWER if owner == UPPER else UPPER, namespace))
    check_collection(cluster, namespace, writers.model)
