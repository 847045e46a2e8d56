"""Adding a shard to a running cluster and removing it again, and the balancer, through the ``shardwright`` command."""

import json
from pathlib import Path

from tests.local_cluster import running_cluster, shardwright


def test_a_shard_comes_and_goes(tmp_path: Path) -> None:
    small = ("--shards", "1", "--orphan-cleanup-delay", "0")
    with running_cluster(tmp_path, *small) as cluster, cluster.client() as client:
        directory = ("--dir", str(tmp_path))
        cluster.run("add-shard")
        assert [shard["_id"] for shard in cluster.status()["shards"]] == ["shard0", "shard1"]
        assert [shard["_id"] for shard in client.admin.command("listShards")["shards"]] == ["shard0", "shard1"]
        client.admin.command("enableSharding", "moving", primaryShard="shard0")
        client.admin.command("shardCollection", "moving.c", key={"x": 1})
        client.moving.c.insert_many([{"x": number} for number in range(100)])
        client.admin.command("split", "moving.c", middle={"x": 50})
        client.admin.command("moveChunk", "moving.c", find={"x": 50}, to="shard1")
        client.admin.command("enableSharding", "resident", primaryShard="shard1")
        client.resident.c.insert_one({"_id": 1})

        refused = shardwright("remove-shard", "shard1", *directory)
        assert refused.returncode == 1
        assert "the balancer is off" in refused.stderr
        shown = json.loads(shardwright("balancer", "--explain", "--json", *directory).stdout)
        assert (shown["mode"], shown["enabled"], shown["decisions"][0]["rule"]) == ("off", False, "draining")
        text = shardwright("balancer", "--explain", *directory).stdout
        assert "move moving.c [50, MaxKey) shard1 -> shard0: draining" in text
        cluster.run("balancer", "start")
        removed = shardwright("remove-shard", "shard1", *directory)
        assert removed.returncode == 0, removed.stderr
        assert "moving the database resident from shard1 to shard0" in removed.stderr
        assert "shard1 was removed" in removed.stderr
        assert list(client.resident.c.find()) == [{"_id": 1}]
        assert [shard["_id"] for shard in client.admin.command("listShards")["shards"]] == ["shard0"]
        assert sorted(document["x"] for document in client.moving.c.find()) == list(range(100))
        assert "shard1" not in {process["name"].split(".")[0] for process in cluster.status()["processes"]}
        assert "no shard is called" in shardwright("remove-shard", "shard1", *directory).stderr
