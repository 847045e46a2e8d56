"""What every migration beside writers must leave behind, however it ended."""

from tests.migration.fault_cluster import FaultCluster
from tests.migration.invariants import Placement, check_collection
from tests.migration.places import move_the_middle_on
from tests.migration.writers import Writers


def check_outcome(cluster: FaultCluster, namespace: str, writers: Writers) -> Placement:
    """Retried writes are answered as the first time, everything is where it must be, and the next migration succeeds.

    Returns:
        Where everything was before that next migration.

    Raises:
        AssertionError: it is not so.
    """
    writers.retry_kept()
    placement = check_collection(cluster, namespace, writers.model)
    move_the_middle_on(cluster, namespace)
    check_collection(cluster, namespace, writers.model)
    return placement
