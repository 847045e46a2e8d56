"""Three config servers elect another primary while their balancer moves or merges chunks of real shards under load."""

from collections.abc import Iterator
from typing import Final

import pytest
from pymongo.database import Database

from tests.fail_points import fail_point
from tests.integration.moves.test_balancing import EVEN_SECONDS_MAX, balancer_on, fill, is_even
from tests.integration.moves.test_defragmentation import count_chunks, fragment, is_defragmented
from tests.integration.sharded import LOWER, UPPER, Document
from tests.integration.waiting import eventually
from tests.integration.workload import Workload
from tests.migration.fault_cluster import CONFIG, NO_DELAY, FaultCluster, fault_cluster
from tests.migration.test_failover import step_down

MEGABYTES: Final = 7
HANG: Final = "moveChunkHangAtStep3"

pytestmark = pytest.mark.exhaustive


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultCluster]:
    """Two shards of one member, three config servers, two routers."""
    with fault_cluster(tmp_path_factory.mktemp("balancer"), *NO_DELAY, "--config-members", "3") as found:
        yield found


@pytest.fixture
def database(cluster: FaultCluster, request: pytest.FixtureRequest) -> Iterator[Database[Document]]:
    name = request.node.name
    yield cluster.router()[name]
    cluster.router().drop_database(name)


@pytest.mark.parametrize("step", [3, 5, 6])
def test_the_next_primary_goes_on_balancing(cluster: FaultCluster, database: Database[Document], step: int) -> None:
    """The former one steps down while a shard carries out a move of its round: while it copies, commits, or ends."""
    router, namespace = cluster.router(), fill(database, "uneven", MEGABYTES)
    stocked = database.uneven.count_documents({"stock": True})
    writers = Workload(database.uneven, writers=2)
    writers.start()
    try:
        donor = cluster.client(f"{LOWER}.0.shardd")
        with balancer_on(router):
            with fail_point(donor, f"moveChunkHangAtStep{step}") as point:
                point.wait_entered()
                step_down(cluster, CONFIG)
            eventually(lambda: is_even(router, namespace), within=EVEN_SECONDS_MAX, what="the data are even")
            writers.wait_for_progress()
    finally:
        writers.stop()
    writers.check(list(database.uneven.find({"stock": None})))
    assert database.uneven.count_documents({"stock": True}) == stocked
    check_sound(cluster, database)


@pytest.mark.parametrize("side", [CONFIG, UPPER])
def test_defragmentation_goes_on(cluster: FaultCluster, database: Database[Document], side: str) -> None:
    """The config servers elect another primary, or a shard's daemon is killed, while a small chunk is being moved."""
    router, namespace = cluster.router(), fragment(database)
    writers = Workload(database.fragments, writers=2)
    writers.start()
    try:
        donors = [cluster.client(f"{shard}.0.shardd") for shard in (LOWER, UPPER)]
        with balancer_on(router), fail_point(donors[0], HANG) as lower, fail_point(donors[1], HANG) as upper:
            router.admin.command("configureCollectionBalancing", namespace, defragmentCollection=True)
            eventually(lambda: in_progress(cluster), within=EVEN_SECONDS_MAX, what="a chunk is being moved")
            if side == CONFIG:
                step_down(cluster, CONFIG)
            else:
                cluster.kill(f"{UPPER}.0.shardd")
                cluster.restart(f"{UPPER}.0.shardd")
            lower.turn_off()
            upper.turn_off()
            eventually(lambda: not is_defragmented(router, namespace), within=EVEN_SECONDS_MAX, what="its end")
            writers.wait_for_progress()
    finally:
        writers.stop()
    writers.check(list(database.fragments.find({"stock": None})))
    assert database.fragments.count_documents({"stock": True}) == 1000
    assert count_chunks(router, namespace) == 1
    check_sound(cluster, database)


def in_progress(cluster: FaultCluster) -> bool:
    """Whether a shard is moving a chunk."""
    config = (cluster.client(f"{shard}.0.mongod").config for shard in (LOWER, UPPER))
    return any(each.migrationAttempts.count_documents({}) for each in config)


def check_sound(cluster: FaultCluster, database: Database[Document]) -> None:
    for index in range(len(cluster.router_addresses)):
        found = cluster.router(index)[database.name].command("checkMetadataConsistency", 1, checkIndexes=True)
        assert found["cursor"]["firstBatch"] == []
