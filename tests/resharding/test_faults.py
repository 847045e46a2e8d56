"""A resharding is stopped in each of its states, and a process is killed there, beside writers.

Whatever the outcome: every acknowledged write is there once, a change stream shows exactly the writes, and nothing is
left of the operation.
"""

from collections.abc import Iterator
from itertools import count
from typing import Final

import pytest
from pymongo.errors import OperationFailure

from tests.integration.sharded import catalog_entry
from tests.integration.waiting import eventually
from tests.migration.fault_cluster import FaultCluster, fault_cluster
from tests.resharding.resharded import check_nothing_left, new_collection, resharding, running_writers, two_halves
from tests.resharding.watched import watched

PLACES: Final = (
    "reshardingPauseRecipientBeforeCloning",
    "reshardingPauseRecipientDuringCloning",
    "reshardingPauseRecipientDuringOplogApplication",
    "reshardingPauseBeforeBlockingWrites",
    "reshardingPauseBeforeHold",
    "reshardingPauseBeforeCommit",
    "reshardingPauseAfterCommit",
)
VICTIMS: Final = (
    *("shard0.0.shardd", "shard1.0.shardd", "shard0.0.mongod", "shard1.0.mongod"),
    *("config.0.configd", "config.0.mongod"),
)
PAUSED: Final = "shard1.0.shardd"
"""The daemon that is stopped: that of the shard which is not the primary shard."""

MAY_FAIL_WITH: Final = frozenset({342})
"""The critical section lasted too long."""

numbers = count(1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultCluster]:
    with fault_cluster(tmp_path_factory.mktemp("resharding")) as found:
        yield found


@pytest.mark.matrix(share=0.5)
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("place", PLACES)
def test_kill(cluster: FaultCluster, place: str, victim: str) -> None:
    router = cluster.router()
    collection = new_collection(router, f"resharding_faults_{next(numbers)}")
    namespace = collection.full_name
    former = catalog_entry(router, namespace)
    assert former is not None
    with watched(collection) as events, running_writers(collection) as writers:
        writers.wait_for_progress(100)
        paused = cluster.client(PAUSED)
        entered = paused.admin.command("configureFailPoint", place, mode="alwaysOn")["count"]
        with resharding(router, namespace, {"other": 1}, _presetReshardedChunks=two_halves("other")) as running:
            wait = {"timesEntered": entered + 1, "maxTimeMS": 60_000}
            paused.admin.command("waitForFailPoint", place, **wait)
            cluster.kill(victim)
            cluster.restart(victim)
            paused.admin.command("configureFailPoint", place, mode="off")
            error = running.wait()
        assert not isinstance(error, OperationFailure) or error.code in MAY_FAIL_WITH, error
        eventually(lambda: not list(router.config.reshardingOperations.find()), within=60, what="it has ended")
        writers.wait_for_progress(100)
        writers.stop()
        stored = list(collection.find())
        writers.check(stored)
        events.check(stored)
    entry = catalog_entry(router, namespace)
    assert entry is not None
    assert (entry["key"] == {"other": 1}) == (entry["uuid"] != former["uuid"])
    if error is None:
        assert entry["key"] == {"other": 1}
    mongods = [cluster.client(f"shard{n}.0.mongod") for n in range(2)]
    check_nothing_left(router, mongods, namespace)
    for mongod in mongods:
        assert not list(mongod.local["oplog.rs"].find({"op": "c", "o.renameCollection": namespace}))
    router.drop_database(collection.database.name)
