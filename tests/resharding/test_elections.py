"""Shards of three members whose primaries change while a collection is resharded and clients write."""

from collections.abc import Iterator
from typing import Final

import pytest

from tests.integration.sharded import LOWER, UPPER
from tests.migration.fault_cluster import FaultCluster, fault_cluster
from tests.migration.test_failover import step_down
from tests.resharding.load import under_load
from tests.resharding.places import STOPS
from tests.resharding.test_faults import MAY_FAIL_WITH, requested

PLACES: Final = (
    "reshardingPauseRecipientDuringCloning",
    "reshardingPauseRecipientDuringOplogApplication",
    "reshardingPauseBeforeBlockingWrites",
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultCluster]:
    with fault_cluster(tmp_path_factory.mktemp("elections"), "--members", "3") as found:
        yield found


@pytest.mark.matrix(share=0.5)
@pytest.mark.parametrize("side", [LOWER, UPPER])
@pytest.mark.parametrize("stop", PLACES)
def test_election(cluster: FaultCluster, stop: str, side: str) -> None:
    with under_load(cluster) as load:
        with STOPS[stop].blocked(cluster) as point, requested(cluster, load) as running:
            point.wait_entered()
            step_down(cluster, side)
            point.turn_off()
            error = running.wait()
        load.check(error, MAY_FAIL_WITH)
