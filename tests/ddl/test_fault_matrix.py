"""Every change of a collection or database is stopped at each of its phases, and every kind of process is killed there.

Meanwhile writers continue. The client repeats its request until it is answered for good, through one router after the
other; then the change has been made, and nothing is left of it.
"""

import pytest

from tests.ddl.changes import STOPS, THINGS, Change
from tests.ddl.outcome import check_outcome
from tests.ddl.persistent_client import requesting
from tests.migration.fault_cluster import FaultCluster
from tests.migration.places import VICTIMS
from tests.migration.writers import writing


@pytest.mark.matrix(share=0.22)
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("stop", STOPS)
def test_kill(cluster: FaultCluster, change: Change, stop: str, victim: str) -> None:
    with writing(f"{change.writers_db}.{THINGS}", cluster.router_addresses) as writers:
        writers.wait_for_progress(60)
        with STOPS[stop][1].blocked(cluster) as point, requesting(cluster, change) as client:
            point.wait_entered()
            cluster.kill(victim)
            cluster.restart(victim)
            point.turn_off()
            client.wait()
        writers.wait_for_progress(60)
    check_outcome(cluster, change, writers)
