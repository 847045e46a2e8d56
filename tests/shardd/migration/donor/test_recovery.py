"""Migrations whose donor or recipient is killed on the way and restarted."""

import signal
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from bson.binary import Binary
from bson.int64 import Int64

from tests.fail_points import fail_point
from tests.shardd.migration.donor.moving import (
    LOW,
    TOP,
    Move,
    changes,
    end,
    migrations_left,
    stopped_move,
    wait_finished,
)
from tests.shardd.mini_cluster import MAJORITY, MiniCluster, mini_cluster
from tests.shardd.router_stand_in import ShardedNamespace


@pytest.fixture
def filled(ranged: ShardedNamespace) -> ShardedNamespace:
    """The collection with documents in the range to move."""
    for begin in range(10, 8010, 2000):
        ranged.insert(*({"_id": n, "a": n, "padding": "x" * 500} for n in range(begin, begin + 2000)))
    return ranged


def restart(mini: MiniCluster, shard: str) -> None:
    """Kill the daemon of a shard and restart it."""
    member = mini.shards[shard].members[0]
    member.restart(member.daemon)


@pytest.mark.parametrize(
    "place",
    [*(f"moveChunkHangAtStep{step}" for step in (2, 3, 4)), "hangBeforeLeavingCriticalSection"],
)
def test_the_donor_is_killed_before_its_critical_section_or_after_the_commit(
    mini: MiniCluster, filled: ShardedNamespace, place: str
) -> None:
    with stopped_move(filled, place) as move:
        restart(mini, "sh0")
        end(move)
        wait_finished(mini)
    # The next primary has resumed it.
    assert filled.chunks()[-1]["shard"] == "sh1"
    assert len(filled.documents("sh1")) == 8000
    assert filled.documents("sh0") == []


def test_the_donor_is_killed_in_its_critical_section(mini: MiniCluster, filled: ShardedNamespace) -> None:
    with stopped_move(filled, "moveChunkHangAtStep5") as move:
        restart(mini, "sh0")
        end(move)
        wait_finished(mini)
    # It was aborted. The config server, which got no reply, may have repeated its request.
    owner, other = ("sh0", "sh1") if filled.chunks()[-1]["shard"] == "sh0" else ("sh1", "sh0")
    assert len(filled.documents(owner)) == 8000
    assert filled.documents(other) == []


def test_the_recipient_is_killed_while_it_clones(mini: MiniCluster, filled: ShardedNamespace) -> None:
    with stopped_move(filled, "migrateThreadHangAtStep4", shard="sh1") as move:
        restart(mini, "sh1")
        move.wait()
    assert filled.chunks()[-1]["shard"] == "sh1"
    assert len(filled.documents("sh1")) == 8000
    assert migrations_left(mini) == []
    assert len(changes(filled, "moveChunk.commit")) >= 1


def test_a_lost_commit_cannot_take_effect_late(mini: MiniCluster, filled: ShardedNamespace) -> None:
    chunk, entry = filled.chunks()[-1], filled.entry()
    version = {"t": entry["timestamp"], "e": entry["lastmodEpoch"], "v": chunk["lastmod"]}
    coordinator = _coordinator(filled, chunk, version)
    member = mini.shards["sh0"].members[0]
    member.daemon.stop(signal.SIGKILL)
    with member.mongod_client() as mongod:
        mongod.config.migrationCoordinators.insert_one(coordinator)
    member.daemon.start()
    member.wait_ready()
    wait_finished(mini)
    late = {
        "_configsvrCommitChunkMigration": filled.namespace,
        "fromShard": "sh0",
        "toShard": "sh1",
        "migratedChunk": {"min": chunk["min"], "max": chunk["max"], "lastmod": version},
        "fromShardCollectionVersion": version,
        "validAfter": entry["timestamp"],
    }
    with mini.config_client() as config:
        assert config.admin.command({**late, "writeConcern": MAJORITY}, check=False)["ok"] == 0.0
    assert len(filled.documents("sh0")) == 8000


def _coordinator(sharded: ShardedNamespace, chunk: dict[str, Any], version: dict[str, Any]) -> dict[str, Any]:
    """The documents that a MongoDB 6.0 donor persists, without our own collections."""
    return {
        "_id": Binary.from_uuid(uuid4()),
        "migrationSessionId": "sh0_sh1_000000000000000000000001",
        "lsid": {"id": Binary.from_uuid(uuid4()), "uid": bytes(32)},
        "txnNumber": Int64(0),
        "nss": sharded.namespace,
        "collectionUuid": sharded.entry()["uuid"],
        "donorShardId": "sh0",
        "recipientShardId": "sh1",
        "range": {"min": chunk["min"], "max": chunk["max"]},
        "preMigrationChunkVersion": version,
    }


def test_the_donor_is_killed_before_all_is_persisted(mini: MiniCluster, filled: ShardedNamespace) -> None:
    member = mini.shards["sh0"].members[0]
    with member.mongod_client() as mongod:
        with fail_point(mongod, "hangDuringBatchUpdate", nss="config.migrationAttempts") as attempts_held:
            move = Move(filled, LOW, TOP, "sh1")
            attempts_held.wait_entered()
            member.daemon.stop(signal.SIGKILL)
        member.daemon.start()
        end(move)
        wait_finished(mini)
        assert list(mongod.config.migrationAttempts.find()) == []


@pytest.fixture(scope="module")
def lonely(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniCluster]:
    """A cluster whose config server the test may stop."""
    with mini_cluster(tmp_path_factory.mktemp("lonely")) as cluster:
        yield cluster


def test_operations_wait_until_the_outcome_is_known(lonely: MiniCluster) -> None:
    sharded = ShardedNamespace(lonely, "waiting.c", {"a": 1}, "sh0")
    sharded.insert(*({"_id": n, "a": n} for n in range(10, 110)))
    config = lonely.config.members[0]
    with stopped_move(sharded, "moveChunkHangAtStep5") as move:
        version = sharded.version()
        config.daemon.stop(signal.SIGKILL)
        restart(lonely, "sh0")
        find = {"find": "c", "filter": {"a": 10}, "shardVersion": version, "maxTimeMS": 1000}
        insert = {"insert": "c", "documents": [{"_id": 999, "a": 999}], "shardVersion": version, "maxTimeMS": 1000}
        for command in (find, insert):
            assert sharded.run(command)["code"] == 50, command
        config.daemon.start()
        config.wait_ready()
        end(move)
    wait_finished(lonely)
    assert len(sharded.documents()) == 100
