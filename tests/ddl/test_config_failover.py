"""Config servers of three members whose primary changes at each phase of every change of a collection or database.

Blocking the writes of users is led by the config servers alone; there, every kind of process is killed, too.
"""

from collections.abc import Iterator
from itertools import count
from typing import Final

import pytest

from tests.ddl.changes import STOPS, THINGS, Change
from tests.ddl.persistent_client import requesting
from tests.ddl.places import Place
from tests.ddl.step_downs import check_step_down
from tests.ddl.write_block import WriteBlock
from tests.integration.sharded import LOWER
from tests.migration.conftest import FAILED, ClusterHolder, shard_in_three
from tests.migration.fault_cluster import CONFIG, NO_DELAY, FaultCluster
from tests.migration.test_failover import step_down

STEP_DOWN: Final = "step down"
PRIMARY: Final = "<primary>"
WRITE_BLOCK_VICTIMS: Final = (
    *("shard0.0.shardd", "shard0.0.mongod", "shard1.0.shardd", "shard1.0.mongod"),
    *(f"config.{PRIMARY}.configd", f"config.{PRIMARY}.mongod", "router.0"),
)

_numbers = count(1)


@pytest.fixture(scope="module")
def cluster_holder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterHolder]:
    """Two shards of one member, three config servers, two routers."""
    holder = ClusterHolder(tmp_path_factory, *NO_DELAY, "--config-members", "3")
    yield holder
    holder.close()


@pytest.fixture
def things(request: pytest.FixtureRequest, cluster: FaultCluster) -> Iterator[str]:
    """A database in which ``things`` is on both shards."""
    db = f"write_block_{next(_numbers)}"
    cluster.router().admin.command("enableSharding", db, primaryShard=LOWER)
    shard_in_three(cluster, f"{db}.{THINGS}")
    cluster.router()[db][THINGS].insert_many([{"key": 0}, {"key": 899}])
    yield db
    if FAILED not in request.node.stash:
        cluster.router().drop_database(db)


@pytest.mark.matrix(share=0.06)
@pytest.mark.parametrize("stop", STOPS)
def test_step_down(cluster: FaultCluster, change: Change, stop: str) -> None:
    check_step_down(cluster, change, stop, CONFIG)


@pytest.mark.matrix(share=0.5)
@pytest.mark.parametrize("fault", [*WRITE_BLOCK_VICTIMS, STEP_DOWN])
@pytest.mark.parametrize("place", WriteBlock.places, ids=[place.name for place in WriteBlock.places])
def test_user_write_block(cluster: FaultCluster, things: str, place: Place, fault: str) -> None:
    change, router = WriteBlock(things, block=True), cluster.router()
    try:
        with place.blocked(cluster) as point, requesting(cluster, change) as client:
            point.wait_entered()
            happen(cluster, fault)
            point.turn_off()
            client.wait()
        change.check_everywhere(cluster)
    finally:
        router.admin.command({"setUserWriteBlockMode": 1, "global": False})
    WriteBlock(things, block=False).check_everywhere(cluster)


def happen(cluster: FaultCluster, fault: str) -> None:
    """Kill a process and start it again, or have the config servers elect another primary."""
    if fault == STEP_DOWN:
        step_down(cluster, CONFIG)
        return
    victim = fault.replace(PRIMARY, str(cluster.primary_index(CONFIG)))
    cluster.kill(victim)
    cluster.restart(victim)
