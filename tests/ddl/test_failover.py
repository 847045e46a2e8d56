"""Shards of three members whose primaries change at each phase of every change of a collection or database."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from tests.ddl.changes import STOPS, THINGS, Change
from tests.ddl.outcome import check_outcome
from tests.ddl.persistent_client import requesting
from tests.ddl.step_downs import check_step_down
from tests.fail_points import FailPoint
from tests.integration.sharded import LOWER, UPPER
from tests.integration.waiting import eventually
from tests.migration.conftest import ClusterHolder
from tests.migration.fault_cluster import NO_DELAY, FaultCluster
from tests.migration.test_failover import step_down
from tests.migration.writers import writing

WAKE_SECONDS_MAX: Final = 60.0

COORDINATED: Final = [name for name, (_, place) in STOPS.items() if place.process == "shardd"]


@pytest.fixture(scope="module")
def cluster_holder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterHolder]:
    """Two shards of three members, two routers."""
    holder = ClusterHolder(tmp_path_factory, *NO_DELAY, "--members", "3")
    yield holder
    holder.close()


@pytest.mark.exhaustive
@pytest.mark.parametrize("side", [LOWER, UPPER], ids=["primary shard", "other shard"])
@pytest.mark.parametrize("stop", STOPS)
def test_step_down(cluster: FaultCluster, change: Change, stop: str, side: str) -> None:
    check_step_down(cluster, change, stop, side)


@pytest.mark.exhaustive
@pytest.mark.parametrize("stop", COORDINATED)
def test_former_primary_sleeps(cluster: FaultCluster, change: Change, stop: str) -> None:
    """The daemon of the former primary is paused until another one has finished the change, and then continues."""
    former = cluster.primary_index(LOWER)
    with writing(f"{change.writers_db}.{THINGS}", cluster.router_addresses) as writers:
        writers.wait_for_progress(60)
        with STOPS[stop][1].blocked(cluster) as point, requesting(cluster, change) as client:
            point.wait_entered()
            with asleep(cluster, f"{LOWER}.{former}.shardd", point):
                step_down(cluster, LOWER, former)
                wait_finished(cluster, former)
            client.wait()
        writers.wait_for_progress(60)
    check_outcome(cluster, change, writers)


def wait_finished(cluster: FaultCluster, former: int) -> None:
    """Wait until the next primary of the primary shard has finished the changes that it recovered."""
    primary = cluster.primary_index(LOWER, other_than=former)
    config = cluster.client(f"{LOWER}.{primary}.mongod").config
    eventually(lambda: not list(config["system.sharding_ddl_coordinators"].find()), what="it is finished")


@contextmanager
def asleep(cluster: FaultCluster, daemon: str, point: FailPoint) -> Iterator[None]:
    """Pause a daemon during the block; on waking it finds the fail point turned off."""
    turning_off = threading.Thread(target=point.turn_off, daemon=True)
    with cluster.paused(daemon):
        turning_off.start()
        yield
    turning_off.join(WAKE_SECONDS_MAX)
    assert not turning_off.is_alive()
