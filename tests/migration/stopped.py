"""Migrations that stand still at a place."""

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
    """A move of the chunk in the middle to `UPPER`, which has come to a place and waits there for the fail point's end.

    The first router has ordered it. It may go on beyond the block if the test has failed.
    """
    with (
        fail_point(cluster.client(place.daemon), place.name, mode) as point,
        moving(cluster.router_addresses[0], middle_to(UPPER, namespace)) as move,
    ):
        point.wait_entered()
        yield point, move
