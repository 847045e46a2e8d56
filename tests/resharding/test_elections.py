"""Shards of three members whose primaries change while a collection is resharded, beside writers."""

from collections.abc import Iterator
from itertools import count
from typing import Final

import pytest
from pymongo.errors import OperationFailure

from tests.integration.sharded import LOWER, UPPER
from tests.integration.waiting import eventually
from tests.migration.fault_cluster import FaultCluster, fault_cluster
from tests.migration.test_failover import step_down
from tests.resharding.resharded import check_nothing_left, new_collection, resharding, running_writers, two_halves
from tests.resharding.test_faults import MAY_FAIL_WITH
from tests.resharding.watched import watched

PLACES: Final = (
    "reshardingPauseRecipientDuringCloning",
    "reshardingPauseRecipientDuringOplogApplication",
    "reshardingPauseBeforeBlockingWrites",
)

numbers = count(1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultCluster]:
    with fault_cluster(tmp_path_factory.mktemp("elections"), "--members", "3") as found:
        yield found


@pytest.mark.matrix(share=0.5)
@pytest.mark.parametrize("side", [LOWER, UPPER])
@pytest.mark.parametrize("place", PLACES)
def test_election(cluster: FaultCluster, place: str, side: str) -> None:
    """The primary of the upper shard is stopped; it steps down itself, or the other shard's primary does."""
    router = cluster.router()
    collection = new_collection(router, f"resharding_elections_{next(numbers)}")
    namespace = collection.full_name
    with watched(collection) as events, running_writers(collection) as writers:
        writers.wait_for_progress(50)
        paused = cluster.client(cluster.primary_daemon(UPPER))
        entered = paused.admin.command("configureFailPoint", place, mode="alwaysOn")["count"]
        with resharding(router, namespace, {"other": 1}, _presetReshardedChunks=two_halves("other")) as running:
            paused.admin.command("waitForFailPoint", place, timesEntered=entered + 1, maxTimeMS=60_000)
            step_down(cluster, side)
            paused.admin.command("configureFailPoint", place, mode="off")
            error = running.wait()
        assert not isinstance(error, OperationFailure) or error.code in MAY_FAIL_WITH, error
        eventually(lambda: not list(router.config.reshardingOperations.find()), within=60, what="it has ended")
        writers.wait_for_progress(50)
        writers.stop()
        stored = list(collection.find())
        writers.check(stored)
        events.check(stored)
    primaries = [f"{shard}.{cluster.primary_index(shard)}.mongod" for shard in (LOWER, UPPER)]
    check_nothing_left(router, [cluster.client(name) for name in primaries], namespace)
    router.drop_database(collection.database.name)
