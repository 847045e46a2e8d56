"""Migrations whose donor or recipient ends on the way, and is started again."""

import signal
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from bson.binary import Binary
from bson.int64 import Int64
from pymongo.errors import ConnectionFailure, PyMongoError

from tests.shardd.migration.donor.moving import (
    HIGH,
    SECONDS_MAX,
    Move,
    changes,
    daemon,
    fail_point,
    migrations_left,
    wait_entered,
)
from tests.shardd.mini_cluster import MAJORITY, MiniCluster, mini_cluster
from tests.shardd.router_stand_in import ShardedNamespace

LOW = {"a": 10}
TOP = {"a": HIGH}


@pytest.fixture
def filled(ranged: ShardedNamespace) -> ShardedNamespace:
    """The collection with documents in the range that is to be moved."""
    for begin in range(10, 8010, 2000):
        ranged.insert(*({"_id": n, "a": n, "padding": "x" * 500} for n in range(begin, begin + 2000)))
    return ranged


def restart(mini: MiniCluster, shard: str) -> None:
    """Kill the daemon of a shard and start it again."""
    member = mini.shards[shard].members[0]
    member.daemon.stop(signal.SIGKILL)
    member.daemon.start()
    member.wait_ready()


def wait_finished(mini: MiniCluster) -> None:
    """Wait until no migration is left on the donor."""
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        try:
            if not migrations_left(mini):
                return
        except ConnectionFailure as error:
            print(f"not there yet: {error}")
        assert time.monotonic() < deadline, migrations_left(mini)
        time.sleep(0.05)


def end(move: Move) -> None:
    """Wait for the end of a move whose donor was killed, however it ended."""
    try:
        move.wait()
    except PyMongoError as failure:
        print(f"the move failed: {failure}")


@pytest.mark.parametrize("step", [2, 3, 4])
def test_the_donor_ends_before_its_critical_section(mini: MiniCluster, filled: ShardedNamespace, step: int) -> None:
    donor = daemon(mini)
    name = f"moveChunkHangAtStep{step}"
    with fail_point(donor, name) as times:
        move = Move(filled, LOW, TOP, "sh1")
        wait_entered(donor, name, times)
        restart(mini, "sh0")
        end(move)
        wait_finished(mini)
    # The next primary has gone on with it.
    assert filled.chunks()[-1]["shard"] == "sh1"
    assert len(filled.documents("sh1")) == 101
    assert filled.documents("sh0") == []


def test_the_donor_ends_in_its_critical_section(mini: MiniCluster, filled: ShardedNamespace) -> None:
    donor = daemon(mini)
    with fail_point(donor, "moveChunkHangAtStep5") as times:
        move = Move(filled, LOW, TOP, "sh1")
        wait_entered(donor, "moveChunkHangAtStep5", times)
        restart(mini, "sh0")
        end(move)
        wait_finished(mini)
    # It was aborted. The config server, which got no answer, may have sent its order again.
    owner, other = ("sh0", "sh1") if filled.chunks()[-1]["shard"] == "sh0" else ("sh1", "sh0")
    assert len(filled.documents(owner)) == 101
    assert filled.documents(other) == []


def test_the_donor_ends_after_the_commit(mini: MiniCluster, filled: ShardedNamespace) -> None:
    donor = daemon(mini)
    with fail_point(donor, "hangBeforeLeavingCriticalSection") as times:
        move = Move(filled, LOW, TOP, "sh1")
        wait_entered(donor, "hangBeforeLeavingCriticalSection", times)
        restart(mini, "sh0")
        end(move)
        wait_finished(mini)
    assert filled.chunks()[-1]["shard"] == "sh1"
    assert len(filled.documents("sh1")) == 101
    assert filled.documents("sh0") == []


def test_the_recipient_ends_while_it_clones(mini: MiniCluster, filled: ShardedNamespace) -> None:
    recipient = daemon(mini, "sh1")
    with fail_point(recipient, "migrateThreadHangAtStep4") as times:
        move = Move(filled, LOW, TOP, "sh1")
        wait_entered(recipient, "migrateThreadHangAtStep4", times)
        restart(mini, "sh1")
        move.wait()
    assert filled.chunks()[-1]["shard"] == "sh1"
    assert len(filled.documents("sh1")) == 101
    assert migrations_left(mini) == []
    assert len(changes(filled, "moveChunk.commit")) >= 1


def test_a_commit_that_was_lost_cannot_come_late(mini: MiniCluster, filled: ShardedNamespace) -> None:
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
    assert len(filled.documents("sh0")) == 101


def _coordinator(sharded: ShardedNamespace, chunk: dict[str, Any], version: dict[str, Any]) -> dict[str, Any]:
    """What a donor persists, that of a MongoDB 6.0, without anything of our own beside it."""
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


@pytest.fixture(scope="module")
def lonely(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniCluster]:
    """A cluster whose config server may be away."""
    with mini_cluster(tmp_path_factory.mktemp("lonely")) as cluster:
        yield cluster


def test_operations_wait_until_the_truth_is_known(lonely: MiniCluster) -> None:
    sharded = ShardedNamespace(lonely, "waiting.c", {"a": 1}, "sh0")
    sharded.insert(*({"_id": n, "a": n} for n in range(10, 110)))
    low = {"a": 10}
    donor = daemon(lonely)
    config = lonely.config.members[0]
    with fail_point(donor, "moveChunkHangAtStep5") as times:
        move = Move(sharded, low, TOP, "sh1")
        wait_entered(donor, "moveChunkHangAtStep5", times)
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
