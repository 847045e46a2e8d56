"""A shard that is frozen: the balancer continues with the others, and a router still shows and kills its operations."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Final

import pytest
from pymongo.errors import ExecutionTimeout, OperationFailure, PyMongoError

from tests.fail_points import fail_point
from tests.integration.moves.test_balancing import stock
from tests.integration.sharded import LOWER, UPPER, shard_by_range
from tests.integration.waiting import eventually
from tests.local_cluster import Client
from tests.migration.fault_cluster import FaultCluster, fault_cluster

KILLED_SECONDS_MAX: Final = 5.0
"""Half as long as the router looks for a killed operation on a shard that does not answer."""

MEGABYTES: Final = 24
"""Half of them on each of two shards; the two others have none."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultCluster]:
    with fault_cluster(tmp_path_factory.mktemp("frozen"), "--shards", "4") as found:
        yield found


def moves_from(client: Client, shard: str) -> int:
    """Return the number of committed moves of the shard's chunks."""
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


@pytest.mark.exhaustive
def test_a_router_shows_and_kills_its_operations(cluster: FaultCluster) -> None:
    client = cluster.router()
    collection = shard_by_range(client["frozen_operations"])
    with cluster.paused(f"{LOWER}.0.mongod"), ThreadPoolExecutor(1) as pool, client.start_session() as session:
        reading = pool.submit(collection.find_one, {"key": -1}, comment="waits", session=session)
        current = {"aggregate": 1, "pipeline": [{"$currentOp": {"localOps": True}}], "cursor": {}}

        def shown() -> list[dict[str, object]]:
            found = client.admin.command(current)["cursor"]["firstBatch"]
            return [each for each in found if each["command"].get("comment") == "waits"]

        [running] = eventually(shown, what="the read is shown")
        began = monotonic()
        client.admin.command("killOp", op=running["opid"])
        assert monotonic() - began < KILLED_SECONDS_MAX
        with pytest.raises(OperationFailure, match="interrupted"):
            reading.result()

        def further_stages_run() -> bool:
            try:
                return list(client.admin.aggregate([{"$currentOp": {"localOps": True}}, {"$match": {"a": 1}}])) == []
            except PyMongoError:
                return False

        eventually(further_stages_run, within=40, what="another shard runs the stages that follow")
    collection.database.client.drop_database(collection.database.name)


MERGED_SECONDS_MAX: Final = 30.0
"""A shard that does not answer counts as lost after 12 s; the rest is for a busy machine."""

MERGED_READS: Final = 8
"""Each is merged on a shard chosen at random."""


@pytest.mark.exhaustive
def test_reads_that_another_shard_merges_end(cluster: FaultCluster) -> None:
    """The merging mongod reads the cursor of the frozen shard, and would wait as long as the shard is frozen."""
    client = cluster.router()
    collection = shard_by_range(client["frozen_merges"])
    collection.insert_many([{"key": key} for key in range(-500, 500)])
    pipeline = [{"$group": {"_id": "$key"}}]
    cursors = [collection.aggregate(pipeline, batchSize=0) for _ in range(MERGED_READS)]

    def seconds_until_it_fails(number: int) -> float:
        began = monotonic()
        with pytest.raises(PyMongoError):
            list(cursors[number])
        return monotonic() - began

    with (
        ThreadPoolExecutor(MERGED_READS) as pool,
        cluster.paused(f"{UPPER}.0.shardd"),
        cluster.paused(f"{UPPER}.0.mongod"),
    ):
        waiting = [pool.submit(seconds_until_it_fails, number) for number in range(MERGED_READS)]
        assert max(each.result(timeout=2 * MERGED_SECONDS_MAX) for each in waiting) < MERGED_SECONDS_MAX
    assert len(eventually(lambda: list(collection.aggregate(pipeline)), what="the shard is back")) == 1000
    client.drop_database("frozen_merges")
