"""Collections that are sharded while other workloads' chunks move."""

from contextlib import ExitStack, closing
from pathlib import Path

from tests.chaos.history import History
from tests.chaos.stage import Shape, Stage
from tests.chaos.workloads.late_sharding import LateSharding
from tests.chaos.workloads.merges import TARGET
from tests.integration.sharded import LOWER, chunks
from tests.local_cluster import RunningCluster
from tests.migration.fault_cluster import FaultCluster

ATTEMPTS = 200
NAME = "late_sharding"


def test_an_attempt_goes_on_where_an_earlier_one_has_failed(cluster: RunningCluster, tmp_path: Path) -> None:
    with ExitStack() as clients, closing(History(tmp_path / "history.jsonl")) as history:
        stage = Stage(FaultCluster(cluster, clients), Shape(routers=2), NAME, "seed", history)
        namespace = f"{NAME}.{TARGET.name}"
        stage.admin.admin.command("enableSharding", NAME, primaryShard=LOWER)
        stage.admin.admin.command("shardCollection", namespace, key=TARGET.key)
        stage.admin.admin.command("split", namespace, middle=TARGET.splits[0])
        sharding = LateSharding(stage, TARGET)
        for _ in range(ATTEMPTS):
            sharding.maybe_shard()
        bounds = [chunk["min"] for chunk in chunks(stage.admin, namespace)]
        stage.admin.drop_database(NAME)
    assert stage.worlds == [TARGET], "now its chunks can be moved"
    assert bounds[1:] == list(TARGET.splits)
