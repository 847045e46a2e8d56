"""Secondaries hide orphans as well: they learn about range deletions from the oplog."""

from pathlib import Path

import pytest

from shardwright.shardd.context.fail_point_names import HANG_BEFORE_DOING_DELETION
from tests.fail_points import fail_point
from tests.shardd.mini_cluster import Member, MiniCluster, mini_cluster
from tests.shardd.router_stand_in import ShardedNamespace


def test_a_secondary_hides_what_was_given_away_and_what_arrives(tmp_path: Path) -> None:
    with mini_cluster(tmp_path, shards=2, members=2) as cluster:
        for shard in cluster.shards.values():
            shard.members.sort(key=_is_secondary)
        sharded = ShardedNamespace(cluster, "d.c", {"a": 1}, "sh0")
        sharded.split([{"a": 0}, {"a": 10}])
        sharded.insert(*({"_id": number, "a": number} for number in range(-5, 15)))
        donor, recipient = (cluster.shards[name].members[1] for name in ("sh0", "sh1"))
        assert ids(cluster, donor, sharded, "sh0") == list(range(-5, 15))
        sharded.move({"a": 0}, {"a": 10}, "sh1")
        kept = [*range(-5, 0), *range(10, 15)]
        assert ids(cluster, donor, sharded, "sh0") == kept
        assert ids(cluster, recipient, sharded, "sh1") == list(range(10))

        # The range moves back: on its former owner it remains hidden until it has arrived, and not afterwards.
        with cluster.shards["sh0"].members[0].mongod_client() as mongod:
            mongod.admin.command("setParameter", 1, orphanCleanupDelaySecs=0)
        primary = cluster.shards["sh0"].members[0]
        primary.restart(primary.daemon)
        sharded.move({"a": 0}, {"a": 10}, "sh0")
        assert ids(cluster, donor, sharded, "sh0") == list(range(-5, 15))
        assert ids(cluster, recipient, sharded, "sh1") == []


def test_a_range_is_kept_for_the_cursors_on_secondaries(tmp_path: Path) -> None:
    with mini_cluster(tmp_path, shards=2, members=2) as cluster:
        donor = cluster.shards["sh0"]
        donor.members.sort(key=_is_secondary)
        primary, secondary = donor.members
        sharded = ShardedNamespace(cluster, "d.c", {"a": 1}, "sh0")
        sharded.split([{"a": 0}, {"a": 10}])
        sharded.insert(*({"_id": number, "a": number} for number in range(-5, 15)))
        with primary.mongod_client() as mongod:
            mongod.admin.command("setParameter", 1, orphanCleanupDelaySecs=1)
        secondary.wait_has_all_of(primary)
        secondary_reads = {"$readPreference": {"mode": "secondary"}}
        find = {"find": "c", "sort": {"_id": 1}, "batchSize": 2, "shardVersion": sharded.version("sh0")}
        reader = cluster.kept_client(secondary).d
        cursor = reader.command({**find, "readConcern": {"level": "majority"}, **secondary_reads})["cursor"]
        with primary.client() as daemon, fail_point(daemon, HANG_BEFORE_DOING_DELETION) as deletion:
            sharded.move({"a": 0}, {"a": 10}, "sh1")
            with pytest.raises(AssertionError):
                deletion.wait_entered(within=4)
            rest = reader.command({"getMore": cursor["id"], "collection": "c", **secondary_reads})["cursor"]
            assert [each["_id"] for each in rest["nextBatch"]] == list(range(-3, 15))
            deletion.wait_entered()


def ids(cluster: MiniCluster, member: Member, sharded: ShardedNamespace, shard: str) -> list[int]:
    """The documents that a secondary returns, once it has everything that its set has acknowledged."""
    member.wait_has_all_of(cluster.shards[shard].members[0])
    command = {
        "find": "c",
        "sort": {"_id": 1},
        "readConcern": {"level": "majority"},
        "$readPreference": {"mode": "secondary"},
        "shardVersion": sharded.version(shard),
    }
    reply = cluster.kept_client(member).d.command(command)
    return [each["_id"] for each in reply["cursor"]["firstBatch"]]


def _is_secondary(member: Member) -> bool:
    with member.client() as client:
        return bool(client.admin.command("hello")["secondary"])
