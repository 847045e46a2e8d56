"""A change during which a primary is replaced, while clients write."""

from tests.ddl.changes import STOPS, THINGS, Change
from tests.ddl.outcome import check_outcome
from tests.ddl.persistent_client import requesting
from tests.migration.fault_cluster import FaultCluster
from tests.migration.test_failover import step_down
from tests.migration.writers import writing


def check_step_down(cluster: FaultCluster, change: Change, stop: str, replica_set: str) -> None:
    """Replace a primary while the change waits at a place; afterwards it has been made, and no write is lost.

    Args:
        cluster: of several members.
        change: to be made.
        stop: the place, a key of `STOPS`.
        replica_set: whose primary steps down.
    """
    with writing(f"{change.writers_db}.{THINGS}", cluster.router_addresses) as writers:
        writers.wait_for_progress(60)
        with STOPS[stop][1].blocked(cluster) as point, requesting(cluster, change) as client:
            point.wait_entered()
            step_down(cluster, replica_set)
            point.turn_off()
            client.wait()
        writers.wait_for_progress(60)
    check_outcome(cluster, change, writers)
