"""Migrations that wait at a fail point."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.fail_points import FailPoint, fail_point
from tests.integration.sharded import UPPER
from tests.migration.fault_cluster import FaultCluster
from tests.migration.moving import RunningMove, moving
from tests.migration.places import Place, middle_to


@contextmanager
def stopped_at(
    cluster: FaultCluster, namespace: str, place: Place, mode: str | dict[str, Any] = "alwaysOn"
) -> Iterator[tuple[FailPoint, RunningMove]]:
    """A move of the middle chunk to `UPPER` that has reached a place, and waits there until its fail point is off.

    It was sent through the first router. It may outlive the block if the test has failed.
    """
    with (
        fail_point(cluster.client(place.daemon), place.name, mode) as point,
        moving(cluster.router_addresses[0], middle_to(UPPER, namespace)) as move,
    ):
        point.wait_entered()
        yield point, move
