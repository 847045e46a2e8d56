"""Adding a shard to a running cluster and removing it again, and the balancer, through the ``shardwright`` command."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
from pymongo.errors import AutoReconnect

from shardwright.deploy import shards
from shardwright.deploy.cluster_state import ClusterState
from shardwright.deploy.errors import DeployError
from shardwright.deploy.layout import Layout
from shardwright.deploy.shards import router
from shardwright.deploy.steps import BAR_WIDTH
from tests.integration.waiting import eventually
from tests.local_cluster import running_cluster, shardwright


class _CrashError(BaseException):
    """The command ends here."""


def test_what_was_interrupted_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adding and removing a shard, ended at the worst moments; `up` neither forgets a shard nor brings one back."""

    @contextmanager
    def losing_replies(layout: Layout, state: ClusterState) -> Iterator[SimpleNamespace]:
        with router(layout, state) as client:

            def command(_: str, host: str, *, name: str) -> NoReturn:
                client.admin.command("addShard", host, name=name)
                raise AutoReconnect("the reply is lost")

            yield SimpleNamespace(admin=SimpleNamespace(command=command))

    def crash(*_: object) -> NoReturn:
        raise _CrashError

    with running_cluster(tmp_path, "--shards", "1") as cluster:

        def names() -> list[str]:
            with cluster.client() as client:
                return [shard["_id"] for shard in client.admin.command("listShards")["shards"]]

        adding = subprocess.Popen(
            [sys.executable, "-m", "shardwright.deploy.cli", "add-shard", "--dir", str(tmp_path)],
            stderr=subprocess.DEVNULL,
        )
        eventually(lambda: (tmp_path / "pids" / "shard1.0.mongod.json").exists(), what="a process runs")
        adding.kill()
        adding.wait()
        cluster.run("add-shard")
        assert names() == ["shard0", "shard1"]

        with monkeypatch.context() as patched:
            patched.setattr(shards, "router", losing_replies)
            with pytest.raises(DeployError, match="it is not known whether"):
                cluster.local.add_shard(1, 60)
        assert names() == ["shard0", "shard1", "shard2"]
        repeated = shardwright("add-shard", "--dir", str(tmp_path))
        assert "going on with shard2" in repeated.stderr
        assert "shard2 is a shard of the cluster" in repeated.stderr
        assert names() == ["shard0", "shard1", "shard2"]

        cluster.run("balancer", "start")
        with cluster.client() as client:
            client.admin.command("enableSharding", "left", primaryShard="shard2")
            client.left.c.insert_one({})
        with monkeypatch.context() as patched:
            patched.setattr(shards, "stop_and_delete", crash)
            with pytest.raises(_CrashError):
                cluster.local.remove_shard("shard2")
        assert names() == ["shard0", "shard1"]
        cluster.down()
        cluster.run("up", "--detach")
        assert names() == ["shard0", "shard1"], "it was removed"
        cluster.run("remove-shard", "shard2")
        assert [shard["_id"] for shard in cluster.status()["shards"]] == ["shard0", "shard1"]
        assert not (tmp_path / "data" / "shard2.0.mongod").exists()


def test_a_shard_comes_and_goes(tmp_path: Path) -> None:
    small = ("--shards", "1", "--orphan-cleanup-delay", "0")
    with running_cluster(tmp_path, *small) as cluster, cluster.client() as client:
        directory = ("--dir", str(tmp_path))
        added = shardwright("add-shard", *directory)
        assert added.returncode == 0, added.stderr
        # A mongod, its primary, a daemon, and the shard in the cluster.
        assert "adding shard1" in added.stdout
        assert "█" * BAR_WIDTH in added.stdout
        assert "4/4" in added.stdout
        assert "1 mongod " in added.stderr
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
