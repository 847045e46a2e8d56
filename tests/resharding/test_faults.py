"""A resharding is stopped in each of its states, and a process is killed there, while clients write.

Whatever the outcome: every acknowledged write is there once, a change stream shows exactly the writes, and nothing is
left of the operation.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest
from pymongo.errors import PyMongoError

from shardwright.wire.error_codes import ErrorCode
from tests.ddl.places import Place
from tests.local_cluster import Client
from tests.migration.fault_cluster import FaultCluster, fault_cluster
from tests.migration.places import VICTIMS
from tests.resharding.load import Load, under_load
from tests.resharding.places import ABORTING, CLONING, STOPS
from tests.resharding.resharded import JOIN_SECONDS_MAX, Resharding, resharding, split_parts

MAY_FAIL_WITH: Final = frozenset({ErrorCode.ReshardingCriticalSectionTimeout})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultCluster]:
    with fault_cluster(tmp_path_factory.mktemp("resharding")) as found:
        yield found


@pytest.mark.matrix(share=0.25)
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("stop", STOPS)
def test_kill(cluster: FaultCluster, stop: str, victim: str) -> None:
    with under_load(cluster) as load:
        with STOPS[stop].blocked(cluster) as point, requested(cluster, load) as running:
            point.wait_entered()
            cluster.kill(victim)
            cluster.restart(victim)
            point.turn_off()
            error = running.wait()
        load.check(error, MAY_FAIL_WITH)


@pytest.mark.matrix(share=0.4)
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("place", ABORTING, ids=[place.name for place in ABORTING])
def test_kill_while_it_is_aborted(cluster: FaultCluster, place: Place, victim: str) -> None:
    with under_load(cluster) as load:
        with CLONING.blocked(cluster) as cloning, requested(cluster, load) as running:
            cloning.wait_entered()
            with place.blocked(cluster) as point, aborting(cluster.router(0), load.namespace):
                point.wait_entered()
                cluster.kill(victim)
                cluster.restart(victim)
                point.turn_off()
                error = running.wait()
        assert error is not None, "it was committed"
        load.check(error, frozenset({ErrorCode.ReshardCollectionAborted}))


@contextmanager
def requested(cluster: FaultCluster, load: Load) -> Iterator[Resharding]:
    """A ``reshardCollection`` through the first router during the block."""
    presets = split_parts("other")
    with resharding(cluster.router(0), load.namespace, {"other": 1}, _presetReshardedChunks=presets) as running:
        yield running


@contextmanager
def aborting(router: Client, namespace: str) -> Iterator[None]:
    """An ``abortReshardCollection`` during the block; it ends with an error if the operation has ended before."""

    def abort() -> None:
        try:
            router.admin.command("abortReshardCollection", namespace)
        except PyMongoError as error:
            print(f"abortReshardCollection: {error}")

    thread = threading.Thread(target=abort, daemon=True)
    thread.start()
    yield
    thread.join(JOIN_SECONDS_MAX)
    assert not thread.is_alive()
