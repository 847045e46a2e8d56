"""A shard that is added, and gets chunks, in the middle of a change of a collection."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bson.max_key import MaxKey

from tests.fail_points import fail_point
from tests.local_cluster import running_cluster
from tests.shardd.mini_cluster import replica_set


def test_the_change_shows_it_with_its_hosts(tmp_path: Path) -> None:
    for name in ("cluster", "third"):
        (tmp_path / name).mkdir()
    with (
        ThreadPoolExecutor() as pool,
        running_cluster(tmp_path / "cluster", "--routers", "2") as cluster,
        replica_set(tmp_path / "third") as third,
        cluster.direct("router.0") as first,
        cluster.direct("router.1") as second,
        cluster.direct("shard0.0.shardd") as coordinator,
    ):
        first.admin.command("enableSharding", "db", primaryShard="shard0")
        first.admin.command("shardCollection", "db.c", key={"k": 1})
        first.admin.command("split", "db.c", middle={"k": 0})
        with fail_point(coordinator, "hangInDDLCoordinator", operationType="collMod_V2", at="BlockShards") as point:
            changing = pool.submit(first.db.command, "collMod", "c", validationLevel="moderate")
            point.wait_entered()
            second.admin.command("addShard", third.connection_string, name="third")
            second.admin.command("moveChunk", "db.c", bounds=[{"k": 0}, {"k": MaxKey()}], to="third")
        assert third.connection_string in changing.result(60)["raw"]
        created = first.db.command("createIndexes", "c", indexes=[{"key": {"late": 1}, "name": "late_1"}])
        assert third.connection_string in created["raw"]
