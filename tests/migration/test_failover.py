"""Shards of three members whose primaries change at each step of a migration."""

from collections.abc import Iterator
from typing import Final

import pytest
from pymongo.errors import AutoReconnect

from tests.integration.sharded import LOWER, UPPER
from tests.migration.conftest import ClusterHolder
from tests.migration.fault_cluster import NO_DELAY, FaultCluster
from tests.migration.outcome import check_outcome
from tests.migration.places import COMMITTED_PLACES, DONOR_STEPS, RECIPIENT_STEPS, Place
from tests.migration.stopped import stopped_at
from tests.migration.writers import writing

DONOR_PLACES: Final = (*DONOR_STEPS, "hangBeforeLeavingCriticalSection", COMMITTED_PLACES[1].name)
"""The last one is where the decision is persisted but the recipient does not know it yet."""

STEP_DOWN_SECONDS: Final = 10
"""Seconds for which a former primary cannot be elected again; another member is elected at once."""


@pytest.fixture(scope="module")
def cluster_holder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterHolder]:
    """Two shards of three members, two routers."""
    holder = ClusterHolder(tmp_path_factory, *NO_DELAY, "--members", "3")
    yield holder
    holder.close()


@pytest.mark.matrix(share=0.5)  # test_fault_matrix stops at each of these places every day
@pytest.mark.parametrize("side", [LOWER, UPPER], ids=["donor steps down", "recipient steps down"])
@pytest.mark.parametrize("place", [*DONOR_PLACES, *RECIPIENT_STEPS])
def test_step_down(cluster: FaultCluster, namespace: str, place: str, side: str) -> None:
    holder = cluster.primary_daemon(LOWER if place in DONOR_PLACES else UPPER)
    with writing(namespace, cluster.router_addresses) as writers:
        writers.wait_for_progress(60)
        with stopped_at(cluster, namespace, Place(holder, place)) as (point, move):
            step_down(cluster, side)
            point.turn_off()
            move.wait()
        writers.wait_for_progress(60)
    check_outcome(cluster, namespace, writers)


@pytest.mark.matrix(share=0.6)
@pytest.mark.parametrize("process", ["mongod", "shardd"])
@pytest.mark.parametrize("side", [LOWER, UPPER], ids=["donor", "recipient"])
@pytest.mark.parametrize("step", [DONOR_STEPS[3], DONOR_STEPS[4], RECIPIENT_STEPS[3]])
def test_primary_is_killed(cluster: FaultCluster, namespace: str, step: str, side: str, process: str) -> None:
    """Another member takes over while the former primary is down."""
    holder = cluster.primary_daemon(LOWER if step in DONOR_STEPS else UPPER)
    index = cluster.primary_index(side)
    victim = f"{side}.{index}.{process}"
    with writing(namespace, cluster.router_addresses) as writers:
        writers.wait_for_progress(60)
        with stopped_at(cluster, namespace, Place(holder, step)) as (point, move):
            cluster.kill(victim)
            if process == "mongod":
                cluster.primary_index(side, other_than=index)
            else:
                # Its mongod remains primary, so no other daemon can answer for the shard.
                cluster.restart(victim)
            if process == "shardd" or not holder.startswith(side):
                # A daemon without its mongod answers no requests, and its work has ended.
                point.turn_off()
            move.wait()
            if process == "mongod":
                writers.wait_for_progress(60)
                cluster.restart(victim)
        writers.wait_for_progress(60)
    check_outcome(cluster, namespace, writers)


def step_down(cluster: FaultCluster, shard: str, primary: int | None = None) -> None:
    """Make a shard elect another primary.

    Args:
        primary: index of the present one, if its daemon does not answer.
    """
    old = cluster.primary_index(shard) if primary is None else primary
    mongod = cluster.client(f"{shard}.{old}.mongod")
    try:
        mongod.admin.command("replSetStepDown", STEP_DOWN_SECONDS, secondaryCatchUpPeriodSecs=10)
    except AutoReconnect as error:
        # Some versions close the connections of a member that steps down.
        print(f"{shard}.{old}: {error}")
    cluster.primary_index(shard, other_than=old)
