"""The state that every migration with concurrent writers must leave behind, however it ended."""

from tests.migration.fault_cluster import FaultCluster
from tests.migration.invariants import Placement, check_collection
from tests.migration.places import move_the_middle_on
from tests.migration.writers import Writers


def check_outcome(cluster: FaultCluster, namespace: str, writers: Writers) -> Placement:
    """Check that retried writes get the same replies, all documents are in place, and the next migration succeeds.

    Returns:
        The placement before that next migration.

    Raises:
        AssertionError: one of these is not true.
    """
    writers.retry_kept()
    placement = check_collection(cluster, namespace, writers.model)
    move_the_middle_on(cluster, namespace)
    check_collection(cluster, namespace, writers.model)
    return placement
