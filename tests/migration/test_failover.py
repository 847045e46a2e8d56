"""Shards of three members, whose primaries change at each step of a migration."""

from collections.abc import Iterator
from itertools import count
from typing import Final

import pytest
from pymongo.errors import AutoReconnect

from tests.fail_points import fail_point
from tests.integration.sharded import LOWER, UPPER
from tests.migration.conftest import FAILED, ClusterHolder, shard_in_three
from tests.migration.fault_cluster import NO_DELAY, FaultCluster
from tests.migration.invariants import check_collection
from tests.migration.moving import moving
from tests.migration.places import DONOR_STEPS, RECIPIENT_STEPS, middle_to, move_the_middle_on
from tests.migration.writers import writing

_numbers = count(1)

STEP_DOWN_SECONDS: Final = 10
"""How long a former primary stays one no more; another is elected at once."""


@pytest.fixture(scope="module")
def replicated_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterHolder]:
    """Two shards of three members, two routers."""
    holder = ClusterHolder(tmp_path_factory, *NO_DELAY, "--members", "3")
    yield holder
    holder.close()


@pytest.fixture
def cluster(request: pytest.FixtureRequest, replicated_cluster: ClusterHolder) -> Iterator[FaultCluster]:
    """The cluster of the module, or a new one if it was left in doubt by the test before."""
    yield replicated_cluster.get()
    replicated_cluster.is_suspect = FAILED in request.node.stash


@pytest.fixture
def namespace(request: pytest.FixtureRequest, cluster: FaultCluster) -> Iterator[str]:
    """A collection in three chunks."""
    name = f"failover_{next(_numbers)}"
    cluster.router().admin.command("enableSharding", name, primaryShard=LOWER)
    yield shard_in_three(cluster, f"{name}.things")
    if FAILED not in request.node.stash:
        cluster.router().drop_database(name)


@pytest.mark.parametrize("side", [LOWER, UPPER], ids=["donor steps down", "recipient steps down"])
@pytest.mark.parametrize("step", [*DONOR_STEPS, *RECIPIENT_STEPS])
def test_step_down(cluster: FaultCluster, namespace: str, step: str, side: str) -> None:
    holder = cluster.primary_daemon(LOWER if step in DONOR_STEPS else UPPER)
    with writing(namespace, cluster.router_addresses) as writers:
        writers.wait_for_progress(60)
        with (
            fail_point(cluster.client(holder), step) as point,
            moving(cluster.router_addresses[0], middle_to(UPPER, namespace)) as move,
        ):
            point.wait_entered()
            step_down(cluster, side)
            point.turn_off()
            move.wait()
        writers.wait_for_progress(60)
    writers.retry_kept()
    check_collection(cluster, namespace, writers.model)
    move_the_middle_on(cluster, namespace)
    check_collection(cluster, namespace, writers.model)


@pytest.mark.parametrize("process", ["mongod", "shardd"])
@pytest.mark.parametrize("side", [LOWER, UPPER], ids=["donor", "recipient"])
@pytest.mark.parametrize("step", [DONOR_STEPS[3], DONOR_STEPS[4], RECIPIENT_STEPS[3]])
def test_death_of_a_primary(cluster: FaultCluster, namespace: str, step: str, side: str, process: str) -> None:
    """Another member goes on while the former primary is down."""
    holder = cluster.primary_daemon(LOWER if step in DONOR_STEPS else UPPER)
    index = cluster.primary_index(side)
    victim = f"{side}.{index}.{process}"
    with writing(namespace, cluster.router_addresses) as writers:
        writers.wait_for_progress(60)
        with (
            fail_point(cluster.client(holder), step) as point,
            moving(cluster.router_addresses[0], middle_to(UPPER, namespace)) as move,
        ):
            point.wait_entered()
            cluster.kill(victim)
            if process == "mongod":
                cluster.primary_index(side, other_than=index)
            else:
                # Its mongod stays primary: nobody else can speak for the shard.
                cluster.restart(victim)
            if process == "shardd" or not holder.startswith(side):
                # A daemon without its mongod answers nobody, and what it was doing has ended.
                point.turn_off()
            move.wait()
            if process == "mongod":
                writers.wait_for_progress(60)
                cluster.restart(victim)
        writers.wait_for_progress(60)
    writers.retry_kept()
    check_collection(cluster, namespace, writers.model)
    move_the_middle_on(cluster, namespace)
    check_collection(cluster, namespace, writers.model)


def step_down(cluster: FaultCluster, shard: str) -> None:
    """Have a shard elect another primary."""
    old = cluster.primary_index(shard)
    mongod = cluster.client(f"{shard}.{old}.mongod")
    try:
        mongod.admin.command("replSetStepDown", STEP_DOWN_SECONDS, secondaryCatchUpPeriodSecs=10)
    except AutoReconnect as error:
        # Some versions close the connections of a member that steps down.
        print(f"{shard}.{old}: {error}")
    cluster.primary_index(shard, other_than=old)
