"""Kills and pauses of every part of a cluster, at either side of a replication and at every phase."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.migration.fault_cluster import NO_DELAY, FaultCluster, fault_cluster
from tests.sampling import many
from tests.sync.running import Ends, SyncProcess
from tests.sync.surviving import DOCUMENTS, PHASES, survive
from tests.sync.writers import DATABASE, DISTRIBUTED, distribute, prepare, writing

VICTIMS: Final = {
    "router": "router.0",
    "shardd": "shard1.0.shardd",
    "mongod": "shard1.0.mongod",
    "configd": "config.0.configd",
    "config mongod": "config.0.mongod",
}
STOPPED: Final = "stopped"
FAULTS: Final = [(STOPPED, "follow"), *(("killed", phase) for phase in PHASES)]


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultCluster]:
    """A cluster of two shards and two routers."""
    with fault_cluster(tmp_path_factory.mktemp("faulty"), *NO_DELAY) as cluster:
        yield cluster


@pytest.fixture
def ends_with(faulty: FaultCluster, plain: tuple[str, str], side: str, tmp_path: Path) -> Iterator[Ends]:
    """The cluster at one side, and a replica set at the other, both empty."""
    uris = (faulty.running.uri, plain[1]) if side == "source" else (plain[0], faulty.running.uri)
    ends = Ends(*uris, tmp_path)
    ends.empty()
    yield ends
    ends.close()


@pytest.mark.matrix(share=0.2)
@pytest.mark.parametrize(("fault", "phase"), FAULTS)
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("side", ["source", "target"])
def test_nothing_is_lost_whatever_part_of_a_cluster_fails(
    ends_with: Ends, faulty: FaultCluster, side: str, victim: str, fault: str, phase: str
) -> None:
    ends, name = ends_with, VICTIMS[victim]

    def fail(process: SyncProcess) -> None:
        if fault == STOPPED:
            with faulty.paused(name):
                time.sleep(many(60, 15))  # longer than the lease
        else:
            faulty.kill(name)
            faulty.restart(name)

    if side == "source":
        distribute(ends.source, DOCUMENTS)
        options = []
    else:
        options = [word for each in DISTRIBUTED for word in ("--shard", f'{DATABASE}.{each}={{"_id": 1}}')]
    prepare(ends.source, DOCUMENTS)
    with writing(ends.source, seed=8, survives=True, has_ddl=False) as workload:
        survive(ends, workload, phase, fail, *options)
