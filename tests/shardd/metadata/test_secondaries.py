"""Secondaries of a shard know what their primary has persisted, and notice when it changes."""

from pathlib import Path

from tests.integration.waiting import eventually
from tests.shardd.mini_cluster import Member, MiniCluster, mini_cluster
from tests.shardd.router_stand_in import ShardedNamespace


def test_a_secondary_answers_by_what_its_primary_knows(tmp_path: Path) -> None:
    with mini_cluster(tmp_path, shards=1, members=2) as cluster:
        primary, secondary = sorted(cluster.shards["sh0"].members, key=_is_secondary)
        cluster.shards["sh0"].members = [primary, secondary]
        sharded = ShardedNamespace(cluster, "d.c", {"a": 1}, "sh0")
        sharded.insert({"_id": 1, "a": 11})
        secondary.wait_has_all_of(primary)
        assert find(cluster, secondary, sharded) == [{"_id": 1, "a": 11}]

        sharded.run({"_shardsvrDropCollection": "c", "databaseVersion": sharded.database_version})
        old_version = {"t": sharded.created["collectionVersion"]["t"], **sharded.created["collectionVersion"]}
        stale = {"find": "c", "shardVersion": old_version, "$readPreference": {"mode": "secondary"}}
        client = cluster.kept_client(secondary)
        eventually(
            lambda: client.d.command(stale, check=False).get("code") == 13388,
            what="the secondary has noticed that the collection is gone",
        )


def find(cluster: MiniCluster, member: Member, sharded: ShardedNamespace) -> list[dict[str, object]]:
    """Read on a member after everything that the set has acknowledged."""
    command = {
        "find": "c",
        "readConcern": {"level": "majority"},
        "$readPreference": {"mode": "secondary"},
        "shardVersion": sharded.version(),
    }
    reply = cluster.kept_client(member).d.command(command)
    return list(reply["cursor"]["firstBatch"])


def _is_secondary(member: Member) -> bool:
    with member.client() as client:
        return bool(client.admin.command("hello")["secondary"])
