"""A shard that is frozen in the middle of a move: the balancer goes on with the others, and can be stopped."""

from collections.abc import Iterator
from time import monotonic
from typing import Final

import pytest
from pymongo.errors import ExecutionTimeout

from tests.fail_points import fail_point
from tests.integration.sharded import LOWER, UPPER, shard_by_range
from tests.integration.test_balancing import stock
from tests.integration.waiting import eventually
from tests.local_cluster import Client
from tests.migration.fault_cluster import FaultCluster, fault_cluster

MEGABYTES: Final = 24
"""Half of them on each of two shards; the two others have none."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultCluster]:
    with fault_cluster(tmp_path_factory.mktemp("frozen"), "--shards", "4") as found:
        yield found


def moves_from(client: Client, shard: str) -> int:
    """How many moves of the shard's chunks have been committed."""
    return client.config.changelog.count_documents({"what": "moveChunk.commit", "details.from": shard})


@pytest.mark.exhaustive
@pytest.mark.parametrize("process", ["shardd", "mongod"])
def test_other_shards_go_on_and_the_balancer_can_be_stopped(cluster: FaultCluster, process: str) -> None:
    client = cluster.router()
    collection = shard_by_range(client[f"frozen_{process}"])
    stock(collection, MEGABYTES)
    donor = cluster.client(f"{LOWER}.0.shardd")
    with fail_point(donor, "moveChunkHangAtStep4") as point:
        client.admin.command("balancerStart")
        point.wait_entered()
        with cluster.paused(f"{LOWER}.0.{process}"):
            began = moves_from(client, UPPER)
            eventually(lambda: moves_from(client, UPPER) >= began + 2, within=120, what="another shard goes on")
            start = monotonic()
            with pytest.raises(ExecutionTimeout):
                client.admin.command("balancerStop", maxTimeMS=500)
            assert monotonic() - start < 60
            status = client.admin.command("balancerStatus")
            assert (status["mode"], status["inBalancerRound"]) == ("off", True)
    client.admin.command("balancerStop", maxTimeMS=60_000)
    assert client.admin.command("balancerStatus")["inBalancerRound"] is False
    assert collection.count_documents({}) == len(collection.distinct("key"))
    collection.database.client.drop_database(collection.database.name)
